"""Common parts of fine-tuning on all trainers: its input, its episodes as tokens, and its metrics."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from xp.envs.rows import reader_of
from xp.episode.metrics_file import MetricsFile
from xp.episode.mixture import EnvironmentMixture
from xp.episode.prompt import prompt_keys
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.progress import step_bar
from xp.lib.secrets.environment import with_secrets_file
from xp.spec import Thinking
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.store import open_verified
from xp.worker.demonstrations import (
    PHASE,
    Example,
    chosen,
    play,
    recorded,
    rendered,
    solvers_of,
    summary,
)
from xp.worker.dialogues import of_messages
from xp.worker.places import NUM_UPDATES, start_place
from xp.worker.stage import StageConfig
from xp.worker.tasks import policy_chat
from xp.worker.trained import check_trained

HELD_OUT_LOSS: Final = "sft/held_out_loss"
TRAINING_FILE: Final = "training.jsonl"
HELD_OUT_FILE: Final = "held_out.jsonl"
"""Files of the episodes' tokens in the stage's directory, for trainers that read them in other processes."""
PICTURES: Final = "pictures"
"""Key of the digests of an episode's pictures."""


@dataclass(frozen=True, kw_only=True)
class SftConfig(StageConfig):
    """Input of a stage that fine-tunes. Paths are relative to the outputs root, the working directory."""

    files: tuple[str, ...]
    """Files of episodes; none if they are played first."""
    is_messages: bool
    """True if the only file has dialogues and not trajectories."""
    solvers: Mapping[str, str]
    """Environment -> script that plays its training tasks first (`module:attribute`)."""

    @property
    def model(self) -> str:
        """Hugging Face id or directory of the model to fine-tune."""
        return start_place(self.spec)

    @property
    def target(self) -> str:
        """Directory of the fine-tuned model, in Hugging Face's format."""
        return self.places.sft

    def updates(self, num_examples: int) -> int:
        """Number of optimizer updates; the last one of an epoch may have fewer episodes."""
        sft = self.spec.sft
        return sft.num_updates or (sft.epochs or 1) * math.ceil(num_examples / sft.batch_size)


C = TypeVar("C", bound=SftConfig)


@dataclass(frozen=True)
class SftProgram(Generic[C]):
    """One run of a trainer's fine-tuning program."""

    config: C
    stage: Path
    """The stage's directory."""
    chat: ChatTokens
    trained: Sequence[Example]
    held_out: Sequence[Example]

    @classmethod
    def begin(
        cls,
        config: C,
        stage: Path,
        model: str | Path,
        tokenizer: Any = None,
        *,
        is_main: bool = True,
        wait: Callable[[], None] = lambda: None,
    ) -> SftProgram[C]:
        """Reads the episodes as tokens, or has the environment's script play them.

        Args:
            config: input of the stage.
            stage: its directory.
            model: directory or id of the model to fine-tune.
            tokenizer: the model's, if it is loaded already.
            is_main: False in processes that do not play the script's episodes.
            wait: returns when all processes have called it.

        Raises:
            XpError: as `policy_chat` and `examples` do.
        """
        chat = policy_chat(config, model, stage, tokenizer)
        trained, held_out = examples(config, stage, chat, is_main=is_main, wait=wait)
        return cls(config, stage, chat, trained, held_out)

    @property
    def num_updates(self) -> int:
        return self.config.updates(len(self.trained))

    def write_files(self) -> None:
        """Writes the episodes' tokens for a trainer that reads them in other processes."""
        write_examples(self.trained, self.stage / TRAINING_FILE)
        write_examples(self.held_out, self.stage / HELD_OUT_FILE)

    def check(self) -> None:
        """Raises XpError (NOT_TRAINED) as `check_trained` does."""
        config = self.config
        check_trained(PHASE, config, self.num_updates, config.model, config.target)


def examples(
    config: SftConfig,
    here: Path,
    chat: ChatTokens,
    *,
    is_main: bool = True,
    wait: Callable[[], None] = lambda: None,
) -> tuple[list[Example], list[Example]]:
    """The episodes as tokens, for training and held out.

    Args:
        config: input of the stage.
        here: the stage's directory.
        chat: the policy's.
        is_main: False in processes that do not play the script's episodes.
        wait: returns when all processes have called it.

    Raises:
        XpError: no episode is left, or the environment fails while its script plays.
    """
    spec = config.spec
    counts = Counter[str]()
    files = [Path(file) for file in config.files]
    if spec.env.is_held_out:
        excluded = held_out_names(Path(config.places.tasks), here)
    else:
        excluded = frozenset()
    with EnvironmentMixture.from_file(here / "episode.json", with_secrets_file()) as mix:
        if config.solvers:
            files = [here / "trajectories" / "solve.jsonl"]
            if is_main:
                _solve(config, here, chat, mix, files[0])
            wait()
        if config.is_messages:
            keeps_thinking = spec.sft.thinking is Thinking.KEEP
            read_picture = reader_of(spec.model.images, config.files[0], os.environ)
            read = list(of_messages(config.files[0], thinking=keeps_thinking, read=read_picture))
        else:
            is_own = not config.solvers and config.files[0].startswith("runs/")
            read = list(recorded(files, counts, is_own=is_own))
        num_episodes = len(read) + sum(counts.values())
        demonstrations = chosen(read, spec, excluded, counts)
        trained, held_out = rendered(demonstrations, spec, chat, mix.dialect, counts)
    line = summary(trained, held_out, counts)
    print(line, flush=True)
    if config.solvers:
        void = counts["void"]
        if void > spec.training.max_void_fraction * num_episodes:
            raise XpError(
                f"{void} of the script's {num_episodes} episodes are void, more than training.max_void_fraction"
                f"={spec.training.max_void_fraction:g}: the environment is failing",
                ExitCode.UNHEALTHY,
            )
    if not trained:
        raise XpError(f"sft.data: no episode is left to train on ({line})", ExitCode.TASKS)
    if is_main:
        write_atomically(here / NUM_UPDATES, json.dumps(config.updates(len(trained))))
    return trained, held_out


def held_out_names(tasks: Path, here: Path) -> frozenset[str]:
    """Ids and prompts of the held-out tasks; a prompt that training has too, by permission or with another seed, is
    not one of them."""
    rows = load_tasks(tasks, here, "held_out")
    trained = {
        key for row in open_verified(tasks).rows("train") for key in prompt_keys(row.messages)
    }
    prompts = {key for row in rows for key in prompt_keys(row.messages)}
    return frozenset((prompts - trained).union(row.task_id for row in rows))


def _solve(
    config: SftConfig, here: Path, chat: ChatTokens, mix: EnvironmentMixture, file: Path
) -> None:
    """Plays the training tasks by the environments' scripts."""
    tasks = Path(config.places.tasks)
    spec = config.spec
    rows = within_limit(
        tasks, load_tasks(tasks, here, "train"), chat, spec.training.max_prompt_tokens
    )
    rows = random.Random(spec.seed).sample(rows, min(len(rows), spec.sft.num_episodes or len(rows)))
    began = time.monotonic()
    play(solvers_of(config.solvers), rows, mix, file, config.places.run)
    print(
        f"{len(rows)} tasks played by their script in {time.monotonic() - began:.1f} s", flush=True
    )


def write_examples(trained: Sequence[Example], file: Path) -> None:
    """Writes one line for each episode: `input_ids`, and `loss_mask` of the same length (SkyRL's own names).

    Where an episode has pictures, each line has `pictures`, a text of their digests.
    """
    has_pictures = any(example.pictures for example in trained)
    lines = []
    for example in trained:
        line: dict[str, Any] = {"input_ids": example.ids, "loss_mask": example.mask}
        if has_pictures:
            line[PICTURES] = " ".join(example.pictures)
        lines.append(f"{json.dumps(line)}\n")
    write_atomically(file, "".join(lines))


def read_examples(file: Path) -> list[Example]:
    """The episodes that `write_examples` has written."""
    values = map(json.loads, file.read_text().splitlines())
    return [
        Example(value["input_ids"], value["loss_mask"], pictures=value.get(PICTURES, "").split())
        for value in values
    ]


def tokens_of_update(trained: Sequence[Example], batch_size: int) -> float:
    """Mean number of tokens of an update."""
    return batch_size * sum(len(example.ids) for example in trained) / max(1, len(trained))


class Updates:
    """Metrics and progress of each update; the line of the last one is written with the loss after it.

    Args:
        metrics: the run's file; None in a process that does not write it.
        num_updates: number of all updates.
        tokens: mean number of tokens of an update, for the speed that is shown.
        costs: returns further metrics of the time since its last call, for each line.
    """

    def __init__(
        self,
        metrics: MetricsFile | None,
        num_updates: int,
        tokens: float,
        costs: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._metrics = metrics
        self._num_updates = num_updates
        self._tokens = tokens
        self._costs = costs
        self._bar: Any = None
        """The progress bar, from the first update on."""
        self._began = time.monotonic()
        self._last: dict[str, float] = {}
        self._start = "before"
        self.start_loss: float | None = None
        """Loss of the held-out episodes before the first update of this process. None means that it is not measured
        yet."""

    def start(self, began: float | None = None) -> None:
        """Sets when the first update of this process began, by time.monotonic. None means now."""
        self._began = began or time.monotonic()

    def begin(self, update: int, held_out_loss: float) -> None:
        """Takes the held-out loss before an update; that before the first one of all is a line of its own."""
        self.start_loss = held_out_loss
        self.start()
        self._start = "before" if update == 0 else f"after update {update}"
        if update == 0 and self._metrics is not None:
            self._metrics.write(0, {HELD_OUT_LOSS: held_out_loss, **self._costs()})

    def end(
        self, update: int, loss: float, grad_norm: float, learning_rate: float, *, is_last: bool
    ) -> None:
        """Takes an update's metrics; raises XpError(DIVERGED) if its loss or gradient is not finite."""
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            raise XpError(
                f"sft: loss {loss:g} and gradient norm {grad_norm:g} at update {update}; lower sft.learning_rate",
                ExitCode.DIVERGED,
            )
        now = time.monotonic()
        values = {
            "training/loss": loss,
            "training/grad_norm": grad_norm,
            "training/learning_rate": learning_rate,
            "training/updates": float(grad_norm > 0),
            "time/update_s": now - self._began,
        }
        self._began = now
        self._show(update, loss, values["time/update_s"])
        if is_last:
            self._last = values
        elif self._metrics is not None:
            self._metrics.write(update, {**values, **self._costs()})

    def _show(self, update: int, loss: float, seconds: float) -> None:
        """Shows an update on the bar, whose time begins with the first update of this process."""
        if self._bar is None:
            is_shown = self._metrics is not None
            self._bar = step_bar("sft", self._num_updates, "update", is_shown=is_shown)
            self._bar.initial = update - 1
            self._bar.n = update - 1
            self._bar.start_t = time.time() - seconds
        speed = f"{self._tokens / seconds:,.0f}" if seconds else "?"
        self._bar.set_postfix({"loss": f"{loss:.4f}", "tokens/s": speed}, refresh=False)
        self._bar.update(update - self._bar.n)

    def finish(self, update: int, held_out_loss: float | None) -> None:
        """Writes the last update, with the held-out loss after it. None means that nothing is held out.

        A resumed fine-tuning that had made all updates writes none: their lines are there.
        """
        has_updated = bool(self._last)
        if self._bar is not None:
            self._bar.close()
        if held_out_loss is not None:
            self._last[HELD_OUT_LOSS] = held_out_loss
            before = f"{math.nan if self.start_loss is None else self.start_loss:.4f} {self._start}"
            print(
                f"sft: loss of the held-out episodes {before}, {held_out_loss:.4f} after the last",
                flush=True,
            )
        if self._metrics is not None and has_updated:
            self._metrics.write(update, {**self._last, **self._costs()})
