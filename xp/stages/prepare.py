"""The `prepare` stage: every run starts with a complete task set, fetched once for all runs that ask for the same."""

from __future__ import annotations

from xp.backends.base import Places
from xp.job import Job, Runtime, Stage
from xp.spec import RunSpec
from xp.spec import Selection as SelectionSpec
from xp.stages.episode import env_config, episode_secrets
from xp.stages.needs import QUIET, host_resources
from xp.tasks.config import MemberConfig, PrepareConfig, Selection
from xp.tasks.request import request_key, with_sources

STORE = "tasks"
PACKAGES = ("pyarrow", "filelock", "aiohttp")


def prepare_config(spec: RunSpec) -> PrepareConfig:
    """What the stage's program reads."""
    members = {
        name: MemberConfig(
            env=env_config(name, member, spec),
            train=_selection(member.train),
            held_out=_selection(member.held_out),
            weight=member.weight,
            system_prompt=member.system_prompt,
        )
        for name, member in spec.env.members.items()
    }
    config = PrepareConfig(members, spec.preparation.allow_missing_fraction, spec.preparation.concurrency, store=STORE)
    return with_sources(config)


def task_set_place(spec: RunSpec) -> str:
    """Directory of the canonical task set, known before it exists."""
    return f"{STORE}/{request_key(prepare_config(spec))}"


def prepare_stage(spec: RunSpec, places: Places) -> Stage:
    """Fetch the tasks; a set that is there already is verified, which takes a fraction of a second."""
    here = places.stage("prepare")
    job = Job(
        argv=("python", "-m", "xp.tasks.prepare", f"{here}/config.json"),
        files={f"{here}/config.json": prepare_config(spec).to_json()},
        outputs=(f"{places.tasks}/manifest.json", f"{places.tasks}/tasks.parquet"),
        resources=host_resources(spec),
        runtime=Runtime(packages=PACKAGES),
        env=dict(QUIET),
        secrets=episode_secrets(spec),
    )
    return Stage("prepare", job)


def _selection(selection: SelectionSpec) -> Selection:
    return Selection(**selection.model_dump())
