"""Held-out tasks played while training, by the policy of the moment, on the engine that plays the training tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from xp.backends.trl.worker.config import During, TRLSampling, TRLTrainConfig
from xp.backends.trl.worker.conversation import OpenEngine
from xp.backends.trl.worker.ranks import Ranks
from xp.backends.trl.worker.rollout import play_with, sample_numbers
from xp.episode.metrics import check_health
from xp.episode.metrics_file import MetricsFile
from xp.episode.mixture import EnvironmentMixture
from xp.episode.recorder import Recorder
from xp.episode.tokens import ChatTokens
from xp.tasks.evaluated import evaluation_metrics
from xp.tasks.row import TaskRow


class HeldOutEvaluation:
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
        config: TRLTrainConfig,
        rows: Sequence[TaskRow],
        chat: ChatTokens,
        mix: EnvironmentMixture,
        recorder: Recorder,
        ranks: Ranks,
    ) -> None:
        assert config.during is not None
        self._config, self._during = config, config.during
        self._chat, self._mix, self._recorder, self._ranks = chat, mix, recorder, ranks
        self._share = share_of(self._during.rounds.episodes(rows), ranks)

    @property
    def patience_s(self) -> int:
        """How long another rank may take at most, beside its training episodes."""
        return self._share.seconds(self._during)

    def is_due(self, step: int) -> bool:
        """Whether the policy that has learned for so many rollout steps is to be evaluated."""
        return step > 0 and step % self._during.every == 0

    def play(self, engine: Callable[[TRLSampling], OpenEngine], step: int) -> None:
        """Play, record and write the metrics; raises XpError(UNHEALTHY) where too many episodes are void."""
        common = self._config.common
        open_engine = engine(self._during.sampling)
        size = max(1, self._during.batch_size // self._ranks.count)
        numbered, played = self._share.numbered, []
        for start in range(0, len(numbered), size):
            rollouts = play_with(open_engine, self._chat, numbered[start : start + size], self._mix)
            for rollout in rollouts[: max(0, self._share.num_counted - start)]:
                self._recorder.write(rollout.trajectory(common.run, "evaluate/during", step))
                played.append(rollout.played())
        everyone = [one for share in self._ranks.gather(played) for one in share]
        check_health(everyone, common.max_void_fraction)
        if self._ranks.is_main:
            metrics = evaluation_metrics("during", everyone, common.pass_threshold, Path(common.tasks))
            MetricsFile(Path(common.metrics), "evaluate_during", common.attempt).write(step, metrics)


@dataclass(frozen=True)
class Share:
    """What one rank plays of an evaluation."""

    numbered: Sequence[tuple[TaskRow, int]]
    """Each row with the number of its sample."""
    num_counted: int
    """The first so many count. The rest are played and thrown away: ranks may share an engine, and all play as many."""

    def seconds(self, during: During) -> int:
        """How long it may take at most."""
        return math.ceil(len(self.numbered) / during.wave_size) * during.wave_s


def share_of(episodes: Sequence[TaskRow], ranks: Ranks) -> Share:
    """This rank's part of an evaluation, as long as every other's."""
    filled = list(islice(cycle(episodes), math.ceil(len(episodes) / ranks.count) * ranks.count))
    numbered = list(zip(filled, sample_numbers([row.task_id for row in filled]), strict=True))
    num_counted = len(range(ranks.number, len(episodes), ranks.count))
    return Share(numbered[ranks.number :: ranks.count], num_counted)
