"""The `prepare` stage: every run starts with a complete task set, fetched once for all runs that ask for the same."""

from __future__ import annotations

from xp.backends.base import RunPaths
from xp.backends.stages.episode import chat_of, env_config, episode_secrets
from xp.backends.stages.model import start_place
from xp.backends.stages.needs import QUIET, host_resources
from xp.job import Job, Runtime, Stage
from xp.spec import HeldOutSpec, Overlap, RunSpec, SelectionSpec
from xp.tasks.config import HeldOut, MemberConfig, PrepareConfig, Reader, Selection
from xp.tasks.request import request_key, with_sources

STORE = "tasks"
PACKAGES = ("pyarrow", "filelock", "aiohttp")


def prepare_config(spec: RunSpec, *, trains: bool = False) -> PrepareConfig:
    """Configuration of the stage's program.

    Args:
        spec: the run.
        trains: whether a training follows, so that a set without training tasks is refused.
    """
    members = {
        name: MemberConfig(
            env=env_config(name, member, spec),
            train=_selection(member.train),
            held_out=None if member.held_out is None else _held_out(member.held_out),
            weight=member.weight,
            system_prompt=member.system_prompt,
        )
        for name, member in spec.env.members.items()
    }
    preparation = spec.preparation
    config = PrepareConfig(
        members, preparation.allow_missing_fraction, preparation.concurrency, store=STORE, trains=trains
    )
    return with_sources(config)


def task_set_place(spec: RunSpec) -> str:
    """Directory of the canonical task set, known before it exists."""
    return f"{STORE}/{request_key(prepare_config(spec))}"


def prepare_stage(spec: RunSpec, places: RunPaths, *, trains: bool) -> Stage:
    """Fetch the tasks; a set that is there already is verified, which takes a fraction of a second."""
    here = places.stage("prepare")
    reader = Reader(start_place(spec), spec.training.max_prompt_tokens, chat_of(spec))
    job = Job(
        argv=("python", "-m", "xp.tasks.prepare", f"{here}/config.json", f"{here}/reader.json"),
        files={
            f"{here}/config.json": prepare_config(spec, trains=trains).to_json(),
            f"{here}/reader.json": reader.to_json(),
        },
        outputs=(f"{places.tasks}/manifest.json", f"{places.tasks}/tasks.parquet"),
        resources=host_resources(spec),
        runtime=Runtime(packages=PACKAGES),
        env=dict(QUIET),
        secrets=episode_secrets(spec),
    )
    return Stage("prepare", job)


def _selection(wanted: SelectionSpec) -> Selection:
    return Selection(wanted.split, wanted.num_tasks, wanted.indices, wanted.shuffle, wanted.seed)


def _held_out(wanted: HeldOutSpec) -> HeldOut:
    values = wanted.model_dump(exclude={"overlap"})
    return HeldOut(**values, may_overlap=wanted.overlap is Overlap.ALLOWED)
