"""What the three trainers' programs share: the config with the number of steps, tasks, environments, the last check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from xp.episode.mixture import EnvironmentMixture
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.lib.reading import config_of
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.tasks.schedule import evaluated_episodes
from xp.tasks.training_length import settle
from xp.worker.best import BestKeeper
from xp.worker.engines.config import EvaluateConfig
from xp.worker.facts import record_facts
from xp.worker.stage import TrainConfig
from xp.worker.tasks import held_out_tasks, training_view
from xp.worker.trained import check_trained

C = TypeVar("C", bound=TrainConfig)


@contextmanager
def open_stage(
    stage: Path, config: TrainConfig, environ: Mapping[str, str], suffix: str = ""
) -> Iterator[tuple[EnvironmentMixture, Recorder]]:
    """Context manager: the environments of a training, and the recorder of its episodes.

    Args:
        stage: the stage's directory, with `episode.json`.
        config: of the stage.
        environ: variables with the secrets' values.
        suffix: of the file of trajectories, for one of several processes.
    """
    file = stage / "trajectories" / f"train{suffix}.jsonl"
    with (
        EnvironmentMixture.from_file(stage / "episode.json", environ) as mix,
        Recorder(file, mix, config.upload_as, environ) as recorder,
    ):
        yield mix, recorder


def evaluation_config(config: TrainConfig, root: Path = Path()) -> EvaluateConfig | None:
    """Input of the evaluations before and after a training. None means that nothing is held out.

    Args:
        config: of the training.
        root: the outputs root.
    """
    if config.evaluation is None:
        return None
    return config_of(root / config.evaluation, EvaluateConfig.from_json)


@dataclass(frozen=True)
class TrainingProgram(Generic[C]):
    """One run of a trainer's program."""

    config: C
    """With the number of rollout steps."""
    stage: Path
    """The stage's directory."""
    all_tasks: Sequence[TaskRow]
    """All training tasks of the set."""

    @classmethod
    def begin(cls, path: Path, from_json: Callable[[Any], C]) -> TrainingProgram[C]:
        """Reads the config and the tasks, and computes the steps.

        Args:
            path: the config file in the stage's directory.
            from_json: `from_json` of the config's class.

        Raises:
            XpError: as `load_tasks` and `settle` do.
        """
        config = config_of(path, from_json)
        rows = load_tasks(Path(config.places.tasks), path.parent, "train")
        steps = settle(config.spec.training, len(rows), path.parent)
        return cls(config.with_steps(steps), path.parent, rows)

    def tasks(self, chat: ChatTokens) -> list[TaskRow]:
        """The training tasks whose prompts are short enough."""
        limit = self.config.spec.training.max_prompt_tokens
        return within_limit(Path(self.config.places.tasks), self.all_tasks, chat, limit)

    def view(self, model: str | Path, chat: ChatTokens, file: Path) -> list[TaskRow]:
        """The rows of a trainer's view of its tasks (`training_view`), after the facts of the run are recorded.

        Args:
            model: directory or id of the model with the initial weights.
            chat: its tokenizer.
            file: of the view, which the trainer's program writes.
        """
        record_facts(self.config, model, self.stage, chat)
        return training_view(self.config, self.tasks(chat), file)

    def held_out_view(self, chat: ChatTokens) -> list[TaskRow]:
        """One row for each episode of an evaluation during training."""
        held_out = held_out_tasks(self.config, self.stage, chat)
        return evaluated_episodes(self.config.spec.evaluation, held_out)

    def check(self) -> None:
        """Raises XpError (NOT_TRAINED) as `check_trained` does."""
        config = self.config
        keeper = BestKeeper.of(config)
        check_trained(
            "train", config, config.num_steps, config.start_model, config.places.model, keeper
        )
