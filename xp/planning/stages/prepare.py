"""The `prepare` stage: makes a complete task set, once for all runs with the same request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from xp.job import Job, Runtime, Stage
from xp.planning.backend import RunPaths
from xp.planning.stages.episode import chat_of, env_config, episode_secrets
from xp.planning.stages.model import start_place
from xp.planning.stages.needs import QUIET, host_resources
from xp.spec import HeldOutSpec, Overlap, RunSpec, SelectionSpec
from xp.tasks.config import HeldOut, MemberConfig, PrepareConfig, Reader, Selection
from xp.tasks.profile import Profile, read_profile
from xp.tasks.request import canonical_request, request_key, with_sources

STORE = "tasks"
PACKAGES = ("pyarrow", "filelock", "aiohttp")


def prepare_config(spec: RunSpec, *, trains: bool = False) -> PrepareConfig:
    """Configuration of the stage's program.

    Args:
        spec: the run.
        trains: whether a training follows, so that a set without training tasks is refused.
    """
    config = replace(_plain_config(spec), trains=trains)
    found = profiles(spec)
    return replace(
        config,
        members={
            name: replace(member, train=_by_profile(member.train, spec.env.members[name].train, found[name]))
            if name in found
            else member
            for name, member in config.members.items()
        },
    )


def _plain_config(spec: RunSpec) -> PrepareConfig:
    """The configuration without the selection by profiles."""
    members = {
        name: MemberConfig(
            env=env_config(name, member, spec),
            train=_selection(member.train),
            held_out=None if member.held_out is None else _held_out(member.held_out),
            weight=member.weight,
        )
        for name, member in spec.env.members.items()
    }
    preparation = spec.preparation
    return with_sources(
        PrepareConfig(members, preparation.allow_missing_fraction, preparation.concurrency, store=STORE)
    )


def profiles(spec: RunSpec) -> dict[str, Profile]:
    """Member -> profile, for environments whose training tasks are selected by one.

    Raises:
        XpError: CONFIG for an evaluation that is missing, unfinished, or of another environment or split.
    """
    if all(member.train.profile is None for member in spec.env.members.values()):
        return {}
    requests = canonical_request(_plain_config(spec))["members"]
    return {
        name: read_profile(Path(spec.outputs), member.train.profile, member.train.split[0], requests[name])
        for name, member in spec.env.members.items()
        if member.train.profile is not None
    }


def task_set_place(spec: RunSpec) -> str:
    """Directory of the canonical task set, known before it exists."""
    return f"{STORE}/{request_key(prepare_config(spec))}"


def prepare_stage(spec: RunSpec, places: RunPaths, *, trains: bool) -> Stage:
    """Stage that fetches the tasks; an existing set is only verified, which takes a fraction of a second."""
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


def _by_profile(selection: Selection, wanted: SelectionSpec, profile: Profile) -> Selection:
    # With refresh_every, a task outside the bounds may be within them later.
    bounds = None if wanted.refresh_every is not None else wanted.pass_rate
    indices = profile.within(bounds, easy_first=wanted.easy_first)
    return replace(selection, num_tasks=None, indices=indices[: wanted.num_tasks])


def _held_out(wanted: HeldOutSpec) -> HeldOut:
    values = wanted.model_dump(exclude={"overlap"})
    return HeldOut(**values, may_overlap=wanted.overlap is Overlap.ALLOWED)
