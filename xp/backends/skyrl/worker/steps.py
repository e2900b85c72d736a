"""SkyRL's tracker: one line of metrics per rollout step, with xp's metrics and SkyRL's own under xp's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.metric_names import AGE, GAP, NATIVE
from xp.episode.advantages import DISTILL_KL
from xp.episode.metrics import EpisodeFacts, all_tokens, check_health, episode_metrics
from xp.episode.metrics_file import MetricsFile
from xp.episode.mixture import EnvironmentMixture
from xp.episode.upload import Recorder
from xp.worker.engines.config import EvaluateConfig
from xp.worker.engines.evaluate import RunEvaluation, evaluated_while_training
from xp.worker.importance import METRICS as OF_WEIGHTS
from xp.worker.played import PlayedEpisode, record, with_group_rewards
from xp.worker.step_log import Start, StepLog, check_gap
from xp.worker.time_limit import check_time


class SkyRLStepLog(StepLog):
    """The tracker passed to SkyRL's trainer.

    Args:
        config: of the run.
        file: where lines go.
        recorder: takes every trajectory.
    """

    def __init__(
        self, config: SkyRLTrainStageConfig, file: MetricsFile, recorder: Recorder
    ) -> None:
        super().__init__(config, file, num_steps=config.num_steps)
        self._config = config
        self._recorder = recorder
        self._played: list[EpisodeFacts] = []
        self._rollout_s = 0.0
        self._pending: dict[str, Any] = {}
        self._start = Start()
        self._start.ended("imports, tasks and Ray")

    def continue_after(self, step: int) -> None:
        """SkyRL's models and engines are there."""
        super().continue_after(step)
        self._check_time(step)
        self._pending["time/start_s"] = self._start.total("models and engines")
        self.unpause()

    def episodes(self, episodes: Sequence[PlayedEpisode], step: int, rollout_s: float) -> None:
        """Records a played batch; raises XpError(UNHEALTHY) if too many of its episodes are void."""
        # SkyRL counts steps from 1, trajectories from 0.
        played = record(episodes, self._recorder, self._config.places.run, "train", step - 1)
        check_health(played, self._config.spec.training.max_void_fraction)
        self._played += played
        self._rollout_s += rollout_s

    def compared(self, metrics: Mapping[str, float], step: int) -> None:
        """Compares the engine's log-probabilities with the policy's; raises XpError(DIVERGED) if too different."""
        if metrics.get(GAP) is not None and not metrics.get(AGE):
            check_gap(step, float(metrics[GAP]), self._training.max_logprob_gap)

    def updated(self, network: str, metrics: Mapping[str, float], step: int) -> None:
        """Records a step's updates of a network; raises XpError(DIVERGED) if the run must stop.

        Args:
            network: `policy` or `critic`.
            metrics: SkyRL's means over these updates; a single non-finite value makes the mean non-finite.
        """
        self._finite.are_finite(
            step,
            {
                "loss": metrics.get("final_loss"),
                "critic's loss": metrics.get("critic_loss"),
                f"gradient norm of the {network}": metrics.get("grad_norm"),
            },
        )

    def held_out(self, episodes: Sequence[PlayedEpisode], step: int) -> float:
        """Records an evaluation during training; returns its reward, or raises XpError(UNHEALTHY) as `episodes`."""
        return self.evaluated(
            record(episodes, self._recorder, self._config.places.run, "evaluate/during", step), step
        )

    def evaluated(self, played: Sequence[EpisodeFacts], step: int) -> float:
        """The same for episodes that are recorded already."""
        return evaluated_while_training(self._config, played, step)

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """SkyRL's hook: takes its own metrics of a finished step; its asynchronous trainer passes them in two parts."""
        self._pending |= data
        if "timing/step" not in data or not self._played:
            return
        data = self._pending
        self._pending = {}
        of_xp = ("time/start_s", DISTILL_KL, *OF_WEIGHTS)
        metrics = {
            name: value
            for name, value in data.items()
            if name in of_xp or name.startswith("curriculum/")
        }
        metrics |= {
            metric: float(data[name])
            for name, metric in NATIVE.items()
            if data.get(name) is not None
        }
        spec = self._config.spec
        episodes = episode_metrics(
            self._played, spec.training.group_size, spec.evaluation.pass_threshold
        )
        metrics |= {**all_tokens(self._played), "time/rollout_s": self._rollout_s}
        self.line(step, episodes | metrics)
        self._check_time(step)
        self._played = []
        self._rollout_s = 0.0

    def _check_time(self, step: int) -> None:
        if step < self._config.num_steps:
            check_time(self._config, step)

    def log_exception(self, error: BaseException, step: int = 0) -> None:
        """SkyRL's hook: does nothing, because the process that started the task reports the error."""
        self.finish()


class ModelEvaluation:
    """Records the evaluations before and after the training, as the evaluate stage would.

    Args:
        config: input of the evaluate stage.
        episodes: `episode.json` of the training.
        mix: the environments.
        environ: variables with the secrets' values.
    """

    def __init__(
        self,
        config: EvaluateConfig,
        episodes: Path,
        mix: EnvironmentMixture,
        environ: Mapping[str, str],
    ) -> None:
        self._common = config
        self._mix = mix
        self._environ = environ
        self._whole = RunEvaluation(config, episodes)
        self.is_due = self._whole.is_due

    def score_groups(self, episodes: Sequence[PlayedEpisode]) -> None:
        """Gives an evaluation's episodes the rewards of their groups, before they are recorded."""
        with_group_rewards(self._mix, episodes, self._whole.samples_per_task)

    def add(self, name: str, episodes: Sequence[PlayedEpisode]) -> list[EpisodeFacts]:
        """Records all episodes of a model; raises XpError(UNHEALTHY) if too many are void."""
        common = self._common
        file = Path(common.stage_dir) / "trajectories" / f"{name}.jsonl"
        with Recorder(file, self._mix, common.upload_as, self._environ) as recorder:
            played = record(episodes, recorder, common.places.run, f"evaluate/{name}", 0)
        self._whole.add(name, played)
        return played
