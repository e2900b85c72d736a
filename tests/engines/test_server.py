"""A real vLLM server as TRL uses it: where turns end, with and without its prefix cache, and when it is lost."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.engines import needs_vllm
from tests.support.sections import sampling_of
from tests.support.tiny import tokenizer_and_model
from tests.support.vllm_on_cpu import configured
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.errors import ExitCode, XpError
from xp.worker.engines.completions import CompletionClient
from xp.worker.engines.conversation import GenerationRequest
from xp.worker.engines.server import RunningServer, running

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
LENGTH = 24


def written(
    served: RunningServer, log: Path, prompt: Sequence[int], max_tokens: int, *stop: str
) -> list[int]:
    """Tokens that the model writes at temperature 0."""
    sampling = sampling_of(600, LENGTH, 300, temperature=0.0, stop=stop)
    writer = CompletionClient(served.url, sampling, [], str(log), key=served.key)
    turn = writer.answer(GenerationRequest(prompt, max_tokens, seed=1))
    assert len(turn.logprobs) == len(turn.ids)
    return list(turn.ids)


def check_ends(served: RunningServer, log: Path) -> None:
    tokenizer, _ = tokenizer_and_model()
    prompt = tokenizer("Where is the key? The butler was in the library with the candlestick.")[
        "input_ids"
    ]
    whole = written(served, log, prompt, LENGTH)
    assert len(whole) == LENGTH
    # The same again, which a prefix cache answers from what it has kept.
    assert written(served, log, prompt, LENGTH) == whole
    # Cut by the limit, wherever that is.
    assert written(served, log, prompt, 7) == whole[:7]
    # Cut by a text: its last token is the last one, and nothing follows it.
    stop = tokenizer.decode(whole[8:11])
    ids = written(served, log, prompt, LENGTH, stop)
    assert whole[: len(ids)] == ids
    assert stop in tokenizer.decode(ids)
    assert stop not in tokenizer.decode(ids[:-1])


@pytest.mark.parametrize(
    ("caching", "sent", "told"),
    [
        ("true", signal.SIGKILL, "the vLLM server ended with 137"),
        ("false", signal.SIGSTOP, "did not answer for 30 s and was killed"),
    ],
    ids=["with a prefix cache, and it dies", "without one, and it hangs"],
)
def test_turns_end_where_they_should_and_a_lost_server_is_told(
    caching: str, sent: signal.Signals, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = configured(
        tmp_path,
        1,
        "backend.engine.placement=separate",
        "backend.engine.accelerators=1",
        f"backend.engine.prefix_caching={caching}",
    )
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config = TRLTrainConfig.from_json((tmp_path / "config.json").read_text())
    assert config.server is not None
    server = replace(config.server, deadline_s=30.0)
    log = tmp_path / "vllm.log"

    def play() -> None:
        with running(server, config.reference, "", log) as served:
            check_ends(served, log)
            alive = (
                one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE
            )
            (guard,) = (one for one in alive if config.reference in one.cmdline())
            for process in guard.children(recursive=True):
                process.send_signal(sent)
            written(served, log, [1, 2, 3], LENGTH)

    with pytest.raises(XpError, match=told) as caught:
        play()
    assert caught.value.code is ExitCode.ENGINE
