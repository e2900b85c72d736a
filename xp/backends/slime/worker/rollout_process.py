"""State of xp in Slime's rollout process: environments, records of episodes, and how each episode ended."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, WorkerConfig
from xp.backends.slime.worker.models import local_model
from xp.backends.slime.worker.pictures import SlimePictures
from xp.backends.slime.worker.processes import close_on_request
from xp.episode.metrics import EpisodeFacts, check_health
from xp.episode.mixture import EnvironmentMixture
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.lib.codec import from_value
from xp.lib.models.files import config_of as model_config
from xp.lib.reading import config_of
from xp.lib.secrets.environment import with_secrets_file
from xp.tasks.curriculum import Curriculum
from xp.worker.engines.completions import biases
from xp.worker.engines.evaluate import RunEvaluation
from xp.worker.engines.teacher import TeacherApi
from xp.worker.media import placeholder_ids
from xp.worker.played import PlayedEpisode
from xp.worker.stage import AFTER, BEFORE
from xp.worker.step_log import Start
from xp.worker.tasks import picture_reader
from xp.worker.time_limit import check_time
from xp.worker.trained import never_filled
from xp.worker.training import evaluation_config

DURING: Final = "during"
PLAYED = "xp_played"
"""Key of a sample's metadata: a EpisodeFacts as plain values."""


class Worker:
    """State of one process; created at the first use.

    Args:
        config: of the stage.
        mix: the environments.
        recorder: takes every trajectory.
    """

    def __init__(self, config: WorkerConfig, mix: EnvironmentMixture, recorder: Recorder) -> None:
        self.config = config
        self.mix = mix
        self.pool = ThreadPoolExecutor(mix.max_sessions(), thread_name_prefix="xp-episode")
        """Pool for an Episode's blocking calls, so that the event loop never waits for an environment."""
        self.slots = asyncio.Semaphore(mix.max_sessions())
        """Limit of episodes in flight; each holds a session."""
        self.num_steps_played = 0
        self._rollout_in_time = 0
        self.start_s: float | None = None
        """Seconds from the beginning of the stage's program to the first episode."""
        self.evaluated: str | None = None
        """Evaluation that is being played: `before`, `during` or `after`."""
        self._chat: ChatTokens | None = None
        self._prompts: dict[str, list[int]] = {}
        self.recorder = self._train_recorder = recorder
        self.judged: list[EpisodeFacts] = []
        """Episodes of all whole groups of this step under dynamic sampling; empty without it."""
        self._num_kept = 0
        self.curriculum: Curriculum | None = None
        """Draws the tasks of each step, by xp.backends.slime.worker.drawn_tasks."""
        self.ungrouped: dict[int, PlayedEpisode] = {}
        """Settled episodes whose group has not ended, by the index of their sample."""
        self.held_out_groups: dict[str, list[tuple[Any, PlayedEpisode]]] = {}
        """Settled episodes of an evaluation whose group has not ended, with their samples, by task."""

    @staticmethod
    def from_file(path: Path) -> Worker:
        """Reads the WorkerConfig, and the `episode.json` of its stage."""
        config = config_of(path, WorkerConfig.from_json)
        stage = Path(config.root, config.stage_dir)
        environ = with_secrets_file()
        mix = EnvironmentMixture.from_file(stage / "episode.json", environ)
        file = stage / "trajectories" / f"{config.stage}.jsonl"
        recorder = Recorder(file, mix, config.upload_as, environ)
        close_on_request(path.parent, mix.close)
        worker = Worker(config, mix, recorder)
        worker.start_s = Start().total("imports, tasks, models and engines")
        return worker

    @cached_property
    def evaluation(self) -> RunEvaluation | None:
        """The evaluation before and after the training. None means that nothing is held out."""
        root = Path(self.config.root)
        config = evaluation_config(self.config, root)
        if config is None:
            return None
        return RunEvaluation(config, root / self.config.stage_dir / "episode.json", root)

    def is_grouped(self, env: str, *, evaluation: bool) -> bool:
        """Returns whether an episode has its reward only when its group has ended."""
        is_alone = evaluation and (self.evaluation is None or self.evaluation.samples_per_task == 1)
        return self.mix.scores_groups(env) and not is_alone

    @cached_property
    def teacher(self) -> TeacherApi | None:
        """Client of the teacher's server. None means that there is no teacher, or Slime loads it."""
        distill = self.config.spec.algorithm.distill
        if distill is None or distill.url is None:
            return None
        return TeacherApi(distill, with_secrets_file())

    @cached_property
    def biases(self) -> Mapping[str, Any]:
        """SGLang's parameter with which placeholders of pictures and sound are never sampled."""
        if self.config.spec.backend.engine.speculative is not None:
            return {}
        config = model_config(self.config.start_model, Path(self.config.root))
        return biases(placeholder_ids(config or {}))

    def due(self, rollout_id: int) -> str | None:
        """Returns the evaluation that Slime plays after this rollout, or before the first one. None means that none is
        due."""
        evaluation = self.evaluation
        is_before = not self.num_steps_played and rollout_id == 0
        if is_before or self.is_last(rollout_id):
            name = BEFORE if is_before else AFTER
            if evaluation is not None and evaluation.is_due(name):
                return name
        if not is_before and self.is_during(rollout_id):
            return DURING
        return None

    def is_during(self, rollout_id: int) -> bool:
        """Returns whether an evaluation during the training is due after this rollout."""
        every = self.config.spec.evaluation.every
        return every is not None and (rollout_id + 1) % every == 0

    def is_last(self, rollout_id: int) -> bool:
        return rollout_id + 1 >= self.config.num_steps

    def begin_evaluation(self, rollout_id: int) -> None:
        """Begins the evaluation that is due, whose episodes are in its own file as those of the evaluate stage."""
        self.evaluated = self.due(rollout_id)
        if self.config.evaluation is not None and self.evaluated in (BEFORE, AFTER):
            stage = self.path(self.config.evaluation).parent
            file = stage / "trajectories" / f"{self.evaluated}.jsonl"
            self.recorder = Recorder(file, self.mix, self.config.upload_as, with_secrets_file())

    def end_evaluation(self) -> None:
        if self.recorder is not self._train_recorder:
            self.recorder.close()
        self.recorder = self._train_recorder
        self.evaluated = None

    def chat(self, tokenizer: Any = None) -> ChatTokens:
        """The policy's tokenizer with the run's chat template; a process has one policy, given at its first episode."""
        if self._chat is None:
            config = self.config
            spec = config.spec
            reader = None
            if spec.model.images is not None:
                model = local_model(config.start_model, Path(config.root))
                reader = picture_reader(model, spec.model, tokenizer)
            self._chat = ChatTokens(
                tokenizer, spec.model, keeps_prompts=spec.record_prompts, pictures=reader
            )
        return self._chat

    @cached_property
    def pictures(self) -> SlimePictures | None:
        """The pictures of the episodes. None means that model.images is off."""
        reader = self.chat().pictures
        if reader is None:
            return None
        return SlimePictures(reader)

    def prompt(self, chat: ChatTokens, sample: Any) -> list[int]:
        """A task's prompt as token ids, rendered once for all episodes of its group."""
        task_id = sample.metadata["task_id"]
        if task_id not in self._prompts:
            self._prompts[task_id] = chat.prompt(
                sample.prompt, json.dumps(sample.metadata["tools"])
            )
        return list(self._prompts[task_id])

    def judge(self, samples: Sequence[Any], *, is_kept: bool) -> None:
        """Counts the episodes of a whole group that dynamic sampling keeps or leaves out, for the step's metrics.

        Raises:
            XpError: (UNHEALTHY) too many of the step's episodes are void; (NOT_TRAINED) it has drawn all the tasks
                that it may, and is not full.
        """
        self.judged += [read_played(sample.metadata) for sample in samples]
        self._num_kept += is_kept
        training = self.config.spec.training
        most = self.config.spec.algorithm.max_sample_batches
        needed = training.prompts_per_step
        num_groups = len(self.judged) // training.group_size
        if num_groups % needed == 0:
            check_health(self.judged, training.max_void_fraction)
        if self._num_kept < needed and num_groups >= most * training.prompts_per_round:
            raise never_filled(self._num_kept, needed, num_groups)

    def check_time(self, rollout_id: int) -> None:
        """Raises XpError(LIMIT) at the beginning of a rollout if the steps before it have used the training's time."""
        if rollout_id > self._rollout_in_time:
            check_time(self.config, rollout_id, Path(self.config.root))
            self._rollout_in_time = rollout_id

    def end_step(self, *, is_last: bool) -> None:
        """Ends a rollout step; after the last one, finishes the upload."""
        self.judged = []
        self._num_kept = 0
        self.ungrouped.clear()  # of groups that Slime has aborted
        self._prompts.clear()
        if is_last:
            self.recorder.close()

    def path(self, name: str) -> Path:
        """A path of the configuration, absolute."""
        return Path(self.config.root, name)


def worker_of(args: Any) -> Worker:
    """This process's worker, as Slime's arguments name it."""
    path: str = getattr(args, WORKER_ATTRIBUTE)
    with _lock:
        if path not in _workers:
            _workers[path] = Worker.from_file(Path(path))
        return _workers[path]


def write_played(metadata: dict[str, Any], played: EpisodeFacts) -> None:
    """Stores how an episode ended in its sample's metadata, as plain values."""
    metadata[PLAYED] = asdict(played)


def read_played(metadata: dict[str, Any]) -> EpisodeFacts:
    """Reads the data that `write_played` stored."""
    return from_value(EpisodeFacts, metadata[PLAYED])


def by_episode(samples: Sequence[Any]) -> list[Any]:
    """One sample of each episode; the rows of an episode have its index."""
    return list({sample.index: sample for sample in samples}.values())


_workers: dict[str, Worker] = {}
_lock = threading.Lock()


VOID_REWARD: Final = math.nan
"""Reward of a void episode's sample; for None, Slime would call a reward model."""


def is_void(sample: Any) -> bool:
    """Returns whether a sample is of a void episode, or of one that nobody has scored yet."""
    return sample.reward is None or math.isnan(sample.reward)
