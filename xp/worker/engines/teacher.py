"""A teacher behind a vLLM server, which returns the log-probabilities of a prompt's tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from xp.envs.chat_api import Api, DialogueFails, TooLong
from xp.episode.picture_reader import PictureReader
from xp.errors import ExitCode, XpError
from xp.lib.models.vocabulary import vocabulary_fault
from xp.spec import Distill
from xp.spec.judge import Endpoint, LimitName
from xp.worker.places import teacher_place

CONCURRENCY: Final = 32
NUM_PROBED: Final = 256
"""Number of ids, over the whole vocabulary, whose text is compared."""
UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
"""Part of the text of a token that is not a whole character."""


def check_teacher(rule: Distill, tokenizer: Any, environ: Mapping[str, str]) -> None:
    """Raises XpError(CONFIG) if the teacher has another vocabulary than the policy.

    Args:
        rule: the distillation.
        tokenizer: the policy's, or its directory or id.
        environ: variables, one of which has the key of the teacher's server.
    """
    from transformers import AutoTokenizer

    policy = tokenizer
    if isinstance(tokenizer, str):
        policy = AutoTokenizer.from_pretrained(tokenizer)
    if rule.url is not None:
        TeacherApi(rule, environ).check_vocabulary(policy)
        return
    teacher = teacher_place(rule)
    fault = vocabulary_fault(policy.get_vocab(), AutoTokenizer.from_pretrained(teacher).get_vocab())
    if fault is not None:
        raise XpError(f"algorithm.distill.teacher={teacher}: {fault}")


def check_teachers_pictures(rule: Distill, reader: PictureReader) -> None:
    """Raises XpError(CONFIG) if a loaded teacher reads other tensors of pictures than the policy, (PLAN) if it reads none.

    Args:
        rule: the distillation.
        reader: the pictures as the policy reads them.
    """
    teacher = teacher_place(rule)
    tokenizer = reader.processor.tokenizer
    of_teacher = PictureReader.load(teacher, reader.store, reader.images, tokenizer)
    if of_teacher.digest() != reader.digest():
        raise XpError(
            f"algorithm.distill.teacher={teacher}: its processor makes other tensors of pictures than the policy's; choose a"
            " teacher with the policy's processor, or set model.images=null"
        )


class ScoredToken(NamedTuple):
    """A token of a sequence, as the teacher's server returns it."""

    logprob: float
    text: str


class TeacherApi(Api):
    """Client of the teacher's server (vLLM 0.22 to 0.31); thread-safe.

    Args:
        rule: the distillation, with `url`.
        environ: variables, one of which has the key.
    """

    path = "/completions"

    def __init__(self, rule: Distill, environ: Mapping[str, str]) -> None:
        assert rule.url is not None
        name = teacher_place(rule)
        endpoint = Endpoint(
            url=rule.url,
            name=name,
            key=rule.key,
            max_tokens=1,
            limit_name=LimitName.MAX_TOKENS,
            timeout_s=600.0,
            seed=None,
            price_in=None,
            price_out=None,
        )
        key = None if rule.key is None else environ[rule.key]
        super().__init__(endpoint, name, key, section="algorithm.distill")

    def score(self, ids: Sequence[int], num_scored: int) -> list[float]:
        """Log-probabilities of the last tokens of a sequence; raises XpError(ENGINE) if the server gives none."""
        # The first token of a sequence has no score.
        return [token.logprob for token in self._scored(ids)[len(ids) - num_scored - 1 :]]

    def score_all(self, sequences: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probabilities of several sequences, each with the number of its last tokens that are scored."""
        with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="xp-teacher") as pool:
            return list(pool.map(lambda one: self.score(*one), sequences))

    def check_vocabulary(self, tokenizer: Any) -> None:
        """Raises XpError(CONFIG) if ids of the policy's tokenizer are other tokens on the server."""
        ids = sorted(tokenizer.get_vocab().values())
        probed = [
            *ids[:: max(1, len(ids) // NUM_PROBED)][:NUM_PROBED],
            *sorted(tokenizer.all_special_ids),
        ]
        for number, token in zip(probed[1:], self._scored(probed), strict=True):
            here = tokenizer.decode([number])
            there = token.text
            # vLLM restores a space at the beginning, which SentencePiece's tokenizers leave out.
            if here.strip(" ") != there.strip(" ") and UNKNOWN not in here + there:
                raise XpError(
                    f"algorithm.distill.teacher={self.name}: token {number} is {here!r} for the policy and {there!r}"
                    " for the teacher; choose a teacher with the policy's tokenizer"
                )

    def _scored(self, ids: Sequence[int]) -> list[ScoredToken]:
        """Each token but the first, which has nothing before it."""
        body = {
            "model": self.name,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }
        try:
            answer = json.loads(self._post(json.dumps(body).encode()))
            entries = answer["choices"][0]["prompt_logprobs"][1:]
            by_token = [entry[str(token)] for token, entry in zip(ids[1:], entries, strict=True)]
            tokens = [
                ScoredToken(float(entry["logprob"]), str(entry.get("decoded_token")))
                for entry in by_token
            ]
        except (TooLong, DialogueFails) as error:
            fault = str(error)
        except (LookupError, TypeError, ValueError):
            fault = "its answer has no prompt_logprobs for each token; a vLLM server is needed"
        else:
            return tokens
        raise XpError(
            f"algorithm.distill.url={self.url}: the teacher's server failed: {fault}",
            ExitCode.ENGINE,
        )
