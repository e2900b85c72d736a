"""Held-out tasks played while training, by the policy of the moment, on the engine that plays the training tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

from xp.backends.trl.config import Sampling, TrainConfig
from xp.backends.trl.conversation import OpenEngine
from xp.backends.trl.ranks import Ranks
from xp.backends.trl.rollout import play_with, sample_numbers
from xp.episode.metrics import check_health, episode_metrics
from xp.episode.metrics_file import MetricsFile
from xp.episode.mix import Mix
from xp.episode.recorder import Recorder
from xp.episode.tokens import ChatTokens
from xp.tasks.row import TaskRow


class HeldOut:
    """Plays the held-out tasks when a step's number says so; every rank plays its share.

    Args:
        config: of the run; its `during` says how often.
        rows: held-out tasks that are short enough.
        chat: the policy's tokenizer.
        mix: the environments.
        recorder: takes every trajectory of this process.
        ranks: the training processes.
    """

    def __init__(
        self,
        config: TrainConfig,
        rows: Sequence[TaskRow],
        chat: ChatTokens,
        mix: Mix,
        recorder: Recorder,
        ranks: Ranks,
    ) -> None:
        assert config.during is not None
        self._config, self._during = config, config.during
        self._chat, self._mix, self._recorder, self._ranks = chat, mix, recorder, ranks
        self._own = _share(rows, self._during.num_episodes, ranks)

    def is_due(self, step: int) -> bool:
        """Whether the policy that has learned for so many rollout steps is to be evaluated."""
        return step > 0 and step % self._during.every == 0

    def play(self, engine: Callable[[Sampling], OpenEngine], step: int) -> None:
        """Play, record and write the metrics; raises XpError(UNHEALTHY) where too many episodes are void."""
        common = self._config.common
        open_engine = engine(self._during.sampling)
        size = max(1, self._during.batch_size // self._ranks.count)
        played = []
        for start in range(0, len(self._own), size):
            for rollout in play_with(open_engine, self._chat, self._own[start : start + size], self._mix):
                self._recorder.write(rollout.trajectory(common.run, "evaluate/during", step))
                played.append(rollout.played())
        everyone = [one for share in self._ranks.gather(played) for one in share]
        check_health(everyone, common.max_void_fraction)
        if self._ranks.is_main:
            metrics = {f"evaluation/during/{name}": value for name, value in episode_metrics(everyone, 1).items()}
            MetricsFile(Path(common.metrics), "evaluate_during", common.attempt).write(step, metrics)


def _share(rows: Sequence[TaskRow], num_episodes: int, ranks: Ranks) -> list[tuple[TaskRow, int]]:
    """Whole rounds of the tasks, filled up so that every rank has as many: ranks may share an engine."""
    whole = len(rows) * math.ceil(num_episodes / len(rows))
    filled = list(islice(cycle(rows), math.ceil(whole / ranks.count) * ranks.count))
    numbered = list(zip(filled, sample_numbers([row.task_id for row in filled]), strict=True))
    return numbered[ranks.number :: ranks.count]
