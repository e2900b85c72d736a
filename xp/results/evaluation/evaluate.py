"""Evaluates one model on one environment: prepares tasks, plays or resumes episodes, writes the summary."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from xp.envs import server_events
from xp.envs.chat_api import Api
from xp.envs.config import EnvConfig, EpisodeConfig
from xp.envs.picture_store import DIRECTORY, PictureStore
from xp.episode.auto_dialect import detect
from xp.episode.evaluation import RECORD, read_evaluation
from xp.episode.judge import JUDGE, JudgeLog
from xp.episode.mixture import EnvironmentMixture
from xp.episode.trajectory import TrajectoryWriter
from xp.errors import XpError
from xp.execution.run_directory import check_writable
from xp.execution.tracking.base import check_trackers
from xp.lib import loaded_code
from xp.lib.atomic import write_json
from xp.lib.digest import digest_of
from xp.lib.secrets.redaction import resolve
from xp.planning.episode import episode_config, episode_environ
from xp.planning.row_files import row_lines
from xp.planning.stages import prepare_config
from xp.results.evaluation import records
from xp.results.evaluation.driver import (
    Allowance,
    EndpointPlay,
    EvaluationContext,
    Health,
    Todo,
    play_local,
)
from xp.results.evaluation.entries import Entry
from xp.results.evaluation.files import write_files
from xp.results.evaluation.local import LocalModel, check_engine, local_model, served_judge
from xp.results.evaluation.progress import EvaluationProgress
from xp.results.evaluation.records import EvaluationIdentity, Number
from xp.results.evaluation.settings import Settings, Tasks
from xp.results.evaluation.summary import summary_of
from xp.results.evaluation.tracked import track
from xp.spec import EngineName
from xp.spec.dialect import Dialect
from xp.tasks.load import check_unchanged, within_limit
from xp.tasks.picture_files import FILE as PICTURES
from xp.tasks.picture_files import members_with_folders
from xp.tasks.prepare import prepare
from xp.tasks.request import request_key, scoring
from xp.tasks.row import TaskRow
from xp.tasks.schedule import evaluated_tasks
from xp.tasks.store import TaskSet
from xp.worker.engines.evaluate import playing


class EvaluationRun:
    """One evaluation of a command.

    Args:
        entry: the model and its environment.
        settings: settings of the command.
        allowance: limit of cost of all episodes of the command.
    """

    def __init__(self, entry: Entry, settings: Settings, allowance: Allowance) -> None:
        self.entry = entry
        self._settings = settings
        self._allowance = allowance
        self._outputs = Path(entry.spec.outputs)
        self._environ = episode_environ(entry.spec)
        self._tracker_keys = check_trackers(entry.spec.tracking)
        self.requested = self._requested(self._tasks())
        self._directory: Path | None = None
        self._task_set: TaskSet
        self._rows: list[TaskRow]

    @property
    def title(self) -> str:
        return f"{self.entry.env} / {self.entry.name}"

    @property
    def starts_engine(self) -> bool:
        """Whether a server of vLLM or SGLang is started, for the model or for a judge."""
        is_local = self.entry.directory is not None
        return self.entry.spec.served_judge is not None or (
            is_local and self._settings.eval.engine is not EngineName.TRANSFORMERS
        )

    def check(self, *, again: bool) -> None:
        """Checks what unplayed episodes need, before anything is made.

        Raises:
            XpError: (SECRET) the model's key has no value, or would be sent in the clear; (RUNTIME) the engine is not
                installed; (RESOURCE) the outputs root cannot be written.
        """
        if _finished(records.directory_of(self._outputs, self.requested, again=again)) is not None:
            return
        if self.entry.directory is None:
            self._connect()
        check_engine(
            self.entry.spec, self._settings.eval, is_local=self.entry.directory is not None
        )
        check_writable(self._outputs)

    def run(self, *, again: bool) -> dict[str, Any]:
        """Plays missing episodes and writes eval.json; the result of a finished evaluation is only read.

        Raises:
            XpError: the model cannot be loaded or does not answer; played episodes stay recorded.
        """
        self._directory = directory = records.directory_of(
            self._outputs, self.requested, again=again
        )
        done = _finished(directory)
        if done is not None:
            if self._allowance.is_limited:
                self._recorded(directory)
            return done
        self.check(again=again)
        for line in row_lines(self.entry.spec):
            print(line, file=sys.stderr, flush=True)
        self._task_set = prepare(prepare_config(self.entry.spec), self._environ, self._outputs)
        self._rows = _rows(self._task_set, self._settings.eval.tasks)
        with records.locked(directory, self.requested), self._model(directory) as model:
            todo = self._todo(model)
            rules = self._rules(model)
            stopped = self._play(directory, model, rules, todo)
            episodes = records.played(directory)
            result = summary_of(
                self.requested,
                self.entry.spec,
                todo,
                episodes,
                stopped,
                self._prices,
                directory.name,
            )
            write_files(directory, result, [episodes[episode] for episode in sorted(episodes)])
            write_json(directory / RECORD, result)
            track(directory, result, self.entry.spec, self._tracker_keys)
        return result

    def num_played(self) -> int:
        """Number of episodes on record, of this call of `run` and of those before that it resumed."""
        if self._directory is None:
            return 0
        return len(records.played(self._directory))

    def _model(self, directory: Path) -> AbstractContextManager[LocalModel | None]:
        if self.entry.directory is None:
            return nullcontext()
        return local_model(self.entry, self._settings.eval, directory)

    def _todo(self, model: LocalModel | None) -> Todo:
        """All episodes of the evaluation: each task once, then each task again."""
        rows = self._rows
        if model is not None:
            rows = within_limit(
                self._task_set.path, rows, model.chat, self.entry.spec.training.max_prompt_tokens
            )
        rule = self.entry.spec.evaluation
        chosen = evaluated_tasks(rule, rows)
        # An interruption loses the groups that have begun: as few as possible.
        if self.entry.spec.env.scores_groups:
            return [(row, sample) for row in chosen for sample in range(rule.samples_per_task)]
        return [(row, sample) for sample in range(rule.samples_per_task) for row in chosen]

    def _rules(self, model: LocalModel | None) -> EpisodeConfig:
        """The episodes' rules, with the model's dialect; for an endpoint, xp writes the calls."""
        config = episode_config(self.entry.spec)

        members = {}
        for name, member in config.members.items():
            dialect = member.dialect
            if model is None and dialect is not Dialect.ACTION:
                dialect = Dialect.HERMES
            elif model is not None and dialect is Dialect.AUTO:
                dialect = detect(model.chat.tokenizer, model.chat.arguments)
            members[name] = member.model_copy(update={"dialect": dialect})
        return EpisodeConfig(members)

    def _play(
        self, directory: Path, model: LocalModel | None, rules: EpisodeConfig, todo: Todo
    ) -> str | None:
        """Plays missing episodes; returns the reason of an early stop, else None."""
        episodes = self._recorded(directory)
        recorded = frozenset(episodes)
        missing = [(row, sample) for row, sample in todo if (row.task_id, sample) not in recorded]
        if not missing:
            return None
        rows = {row.task_id: row for row, _ in missing}
        done = recorded
        if self.entry.spec.env.scores_groups:
            done = frozenset(key for key in recorded if key[0] not in rows)
        check_unchanged(
            self._task_set.path, prepare_config(self.entry.spec), list(rows.values()), self._environ
        )
        num_void = sum(record["outcome"]["reward"] is None for record in episodes.values())
        health = Health(self.entry.spec.training.max_void_fraction, len(todo), num_void)
        reason = self._allowance.spent() or health.passed()
        if reason is not None:
            return reason
        variables = {
            module.VARIABLE: str((directory / module.FILE).absolute())
            for module in (loaded_code, server_events)
        }
        board = EvaluationProgress(self.title, len(todo), episodes.values(), self._cost)
        with (
            _variables(variables),
            served_judge(self.entry.spec, self._settings.eval, directory) as judge,
            EnvironmentMixture(
                rules,
                self._environ | judge | variables,
                JudgeLog(directory / JUDGE, (directory / JUDGE).glob("*.jsonl")),
            ) as mix,
            TrajectoryWriter(directory / records.EPISODES) as writer,
            board,
        ):
            context = EvaluationContext(
                run=directory.name,
                mix=mix,
                rules=rules,
                writer=writer,
                board=board,
                health=health,
                done=done,
                recorded=recorded,
                pictures=PictureStore(self._outputs.absolute() / DIRECTORY),
                group_size=self.entry.spec.evaluation.samples_per_task,
            )
            concurrency = min(self._settings.eval.concurrency, mix.max_sessions())
            if model is not None:
                return play_local(context, model, todo, concurrency, self._spend)
            how = self.entry.spec.evaluation
            tools = self._settings.model.tools
            play = EndpointPlay(
                context, self._connect, tools, how.temperature, how.top_p, self._spend
            )
            return play(todo, concurrency, mix.max_sessions())

    def _connect(self, pause: Callable[[float], None] = time.sleep) -> Api:
        name = self._settings.model.key
        key = resolve([name])[name] if name else None
        return Api(
            self._settings.model,
            self.entry.name,
            key,
            pause,
            max_attempts=self._settings.model.max_attempts,
        )

    @property
    def _prices(self) -> tuple[float | None, float | None]:
        """US dollars per million input tokens, and per million output tokens; a model of this machine has none."""
        if self.entry.directory is not None:
            return None, None
        return self._settings.model.price_in, self._settings.model.price_out

    def _recorded(self, directory: Path) -> dict[Number, Mapping[str, Any]]:
        """The episodes on record, after their usage is counted for the limits of the command."""
        episodes = records.played(directory)
        for record in episodes.values():
            self._spend(records.recorded_usage(record))
        return episodes

    def _spend(self, usage: Mapping[str, Any]) -> str | None:
        self._allowance.spend(usage, *self._prices)
        return self._allowance.spent()

    def _cost(self) -> str:
        if self._prices != (None, None) or self._allowance.cost_usd > 0:
            return f"${self._allowance.cost_usd:.3f}"
        return ""

    def _tasks(self) -> str:
        """Identity of the task set: its key, and its content if that depends on pictures beside the rows."""
        config = prepare_config(self.entry.spec)
        key = request_key(config)
        if not members_with_folders(config):
            return key
        task_set = prepare(config, self._environ, self._outputs)
        if PICTURES not in task_set.manifest.files:
            return key
        return f"{key}-{task_set.manifest.content_digest[:8]}"

    def _requested(self, task_set: str) -> EvaluationIdentity:
        spec = self.entry.spec
        model = self._settings.model
        evaluation = spec.evaluation
        if self.entry.directory is None:
            how: dict[str, Any] = {
                **evaluation.model_dump(
                    include={"num_tasks", "samples_per_task", "temperature", "pass_threshold"}
                ),
                **model.model_dump(mode="json", include={"tools", "max_tokens", "seed"}),
                **({"top_p": evaluation.top_p} if evaluation.top_p < 1 else {}),
            }
        else:
            how = playing(spec)
            how["dtype"] = spec.model.dtype.value
            engine = self._settings.eval.engine
            if engine is not EngineName.TRANSFORMERS:
                how["engine"] = engine.value
        how["tasks"] = self._settings.eval.tasks.value
        config = episode_config(spec)
        rules = digest_of(
            [{name: rules_of(member) for name, member in config.members.items()}, scoring(config)]
        )
        return EvaluationIdentity(
            self.entry.env, self.entry.model, self.entry.run, task_set, rules, how
        )


def rules_of(config: EnvConfig) -> dict[str, Any]:
    """Everything of an environment that its episodes depend on, as JSON values."""
    selection = {"train", "held_out", "weight"}
    server = {"model": {"serve", "accelerators"}}
    values: dict[str, Any] = config.model_dump(
        mode="json", exclude={**dict.fromkeys(selection, True), "judge": server}
    )
    return values


def _finished(directory: Path) -> dict[str, Any] | None:
    """Result of an evaluation. None means that it is not finished, or does not exist."""
    file = directory / RECORD
    if file.exists():
        record = read_evaluation(file)
        if record.status == "finished":
            return dict(record.content)
    return None


def _rows(task_set: TaskSet, tasks: Tasks) -> list[TaskRow]:
    rows = list(task_set.rows(None if tasks is Tasks.ALL else tasks.value))
    if not rows:
        others = ", ".join(Task.value for Task in Tasks if Task is not tasks)
        raise XpError(
            f"there are no {tasks.value} tasks in {task_set.path}; eval.tasks takes also {others}"
        )
    return rows


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Context manager: sets variables of this process, which may go on with something else afterwards."""
    before = dict(os.environ)
    os.environ |= values
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name)
        os.environ |= {name: before[name] for name in values.keys() & before.keys()}
