"""Tasks of inspect_ai, in a Python that has it: each session is one sample of one evaluation of inspect_ai.

inspect_ai plays the sample with its own solver, tools, limits and scorers; xp provides the model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import numpy
from inspect_ai import Task as InspectTask
from inspect_ai._eval.loader import load_tasks
from inspect_ai._util.registry import registry_params
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, Model, get_model

from xp.contrib.inspect.evaluation import InspectEvaluation
from xp.contrib.inspect.session import InspectSession, ScoreChoice
from xp.envs.base import ProtocolError, Task
from xp.envs.config import EnvConfig
from xp.envs.retry import MAX_ATTEMPTS
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of

SPLIT: Final = "all"
"""Name of the only split; a task of inspect_ai has one dataset."""
DESCRIBED: Final = {"id", "input", "target", "choices"}
"""Fields of a sample that identify it; its metadata may not be JSON."""


class InspectTasks:
    """See xp.envs.base.Provider; `options` are those of xp.contrib.inspect.provider."""

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        os.environ["XDG_DATA_HOME"] = tempfile.gettempdir()  # Its traces include the conversations.
        roles = {
            name: _role(config, name, role, environ)
            for name, role in config.options["roles"].items()
        }
        _seed_shuffles()
        task = _task(config)
        self._samples = _samples(config, task)
        self._scoring = ScoreChoice(config.options["score"], config.options["prices"])
        self._evaluation = InspectEvaluation(
            task, roles, config.limits.max_sessions, config.max_turns
        )

    def version(self) -> str:
        content = digest_of([_described(sample) for sample in self._samples])[:16]
        return f"inspect_ai {version('inspect_ai')}, {self._config.target}, samples {content}"

    def splits(self) -> tuple[str, ...]:
        return (SPLIT,)

    def num_tasks(self, split: str) -> int:
        if split != SPLIT:
            raise ProtocolError(f"there is no split {split!r}, only {SPLIT}")
        return len(self._samples)

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        return [
            Task(self._config.name, split, index, _described(self._samples[index]))
            for index in indices
        ]

    def open(self, task: Task) -> InspectSession:
        limits = self._config.limits
        sample = self._samples[task.index]
        session = InspectSession(self._evaluation, sample, self._scoring, limits.call_timeout_s)
        session.begin(limits.create_timeout_s)
        return session

    def close(self) -> None:
        self._evaluation.close()


def _seed_shuffles() -> None:
    """Gives shuffles without a seed the same result in every process; see xp.envs.host for those by `random`."""
    numpy.random.seed(0)  # of `hf_dataset`
    shuffle_choices = MemoryDataset.shuffle_choices
    MemoryDataset.shuffle_choices = lambda self, seed=None: shuffle_choices(
        self, 0 if seed is None else seed
    )


def _task(config: EnvConfig) -> InspectTask:
    """The task that the target names; raises XpError if inspect_ai or xp refuses it."""
    where = f"env {config.name}: target {config.target}"
    target = str(config.target)
    try:
        tasks = load_tasks([target], dict(config.options["arguments"]))
    except (Exception, SystemExit) as error:
        raise XpError(f"{where}: inspect_ai refuses it: {type(error).__name__}: {error}") from error
    if len(tasks) != 1:
        names = ", ".join(task.name for task in tasks) or "none"
        raise XpError(f"{where}: expected one task, got {names}: write FILE.py@TASK")
    task = tasks[0]
    unknown = sorted(set(config.options["arguments"]) - set(registry_params(task)))
    if unknown:
        raise XpError(f"{where}: options.arguments: the task has no argument {unknown[0]!r}")
    if not task.scorer:
        raise XpError(f"{where}: the task has no scorer, so that there is no reward")
    if task.sandbox is not None or any(sample.sandbox is not None for sample in task.dataset):
        raise XpError(
            f"{where}: the task wants a sandbox, which xp does not give to inspect_ai's tasks;"
            " use env=harbor, which plays tasks in containers"
        )
    return task


def _samples(config: EnvConfig, task: InspectTask) -> list[Sample]:
    """The samples, with inspect_ai's ids."""
    samples = [sample.model_copy(deep=True) for sample in task.dataset]
    if not samples:
        raise XpError(f"env {config.name}: {config.target} has no samples", ExitCode.ENVIRONMENT)
    for number, sample in enumerate(samples, 1):
        sample.id = number if sample.id is None else sample.id
    if len({sample.id for sample in samples}) < len(samples):
        raise XpError(
            f"env {config.name}: {config.target}: two samples have the same id",
            ExitCode.ENVIRONMENT,
        )
    return samples


def _described(sample: Sample) -> dict[str, Any]:
    described: dict[str, Any] = sample.model_dump(mode="json", include=DESCRIBED, exclude_none=True)
    if not isinstance(sample.input, str):  # inspect_ai gives each message a random id.
        described["input"] = [
            {"role": message.role, "content": message.text} for message in sample.input
        ]
    return described


def _role(
    config: EnvConfig, name: str, role: Mapping[str, Any], environ: Mapping[str, str]
) -> Model:
    variable = role["api_key_var"]
    if variable is not None and not environ.get(variable):
        raise XpError(
            f"env {config.name}: options.roles.{name}.api_key_var={variable}: declare it, env.secrets.{variable}=null",
            ExitCode.SECRET,
        )
    key = environ[variable] if variable is not None else "none"
    try:
        return get_model(
            role["model"],
            role=name,
            config=GenerateConfig(
                max_retries=MAX_ATTEMPTS, timeout=int(config.limits.call_timeout_s)
            ),
            base_url=role["base_url"],
            api_key=key,
            memoize=False,
        )
    except Exception as error:
        raise XpError(f"env {config.name}: options.roles.{name}: {error}") from error
