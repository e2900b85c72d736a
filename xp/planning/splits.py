"""Sizes of an environment's splits before a run, from its own cached task set or another set of that environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xp.lib.text import counted
from xp.planning.backend import Refusal
from xp.planning.stages.prepare import STORE, prepare_config, profiles, task_set_place
from xp.spec import EnvMember, HeldOutSpec, Overlap, RunSpec
from xp.tasks.held_out import OWN_SPLITS, HeldOutRecord, Rule, evaluation_only, named
from xp.tasks.manifest import MANIFEST, read_manifest
from xp.tasks.request import IDENTITY, canonical_request


def held_out_lines(spec: RunSpec, outputs: Path) -> list[str]:
    """One line for each environment: the rule of its held-out tasks, with numbers if the set is cached."""
    try:
        known = read_manifest(outputs / task_set_place(spec)).held_out
    except (OSError, ValueError):
        known = {}
    is_mix = len(spec.env.members) > 1
    return [
        f"held out{f' of {name}' if is_mix else ''}: {known[name].line() if name in known else _rule(member.held_out)}"
        for name, member in spec.env.members.items()
    ]


def profile_lines(spec: RunSpec) -> list[str]:
    """One line for each environment whose training tasks are selected by their pass rates."""
    lines = []
    for name, profile in profiles(spec).items():
        train = spec.env.members[name].train
        low, high = train.pass_rate or (0.0, 1.0)
        below, within, above = profile.counts((low, high))
        left = within if train.num_tasks is None else min(within, train.num_tasks)
        order = ", those that passed most often first" if train.easy_first else ""
        again = "" if train.refresh_every is None else f", selected anew every {counted(train.refresh_every, 'step')}"
        what = f"{within} with a pass rate of {low:g} to {high:g}, {below} below, {above} above{order}{again}"
        of = f"{left} of {len(profile.rates)} profiled ({profile.model}, {profile.num_tries} tries)"
        lines.append(f"training tasks of {name}: {of}: {what}")
    return lines


def profile_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses bounds that no task's pass rate meets, and an order that training would not keep."""
    for name, profile in profiles(spec).items():
        train = spec.env.members[name].train
        key = "env" if len(spec.env.members) == 1 else f"env.members.{name}"
        if not profile.within(train.pass_rate, easy_first=False):
            low, high = train.pass_rate or (0.0, 1.0)
            below, _, above = profile.counts((low, high))
            yield Refusal(
                f"{key}.train.pass_rate",
                f"no task has a pass rate of {low:g} to {high:g}: of {len(profile.rates)}, {below} are below and"
                f" {above} above; set other bounds, or {key}.train.pass_rate=null",
            )
        if train.easy_first and spec.training.shuffle:
            yield Refusal(
                f"{key}.train.easy_first", "training.shuffle=true would change this order; set training.shuffle=false"
            )


def split_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses more training tasks than a held-out share leaves, and no training task, if the sizes are known."""
    requests = canonical_request(prepare_config(spec))["members"]
    records = {name: _record_of(Path(spec.outputs), requests[name]) for name in spec.env.members}
    if all(_trains_nothing(member, records[name]) for name, member in spec.env.members.items()):
        yield from (Refusal("env.train.split", evaluation_only(record)) for record in records.values())
        return
    for name, member in spec.env.members.items():
        found = records[name]
        wanted, held_out = member.train.num_tasks, member.held_out
        if found is None or set(found.train_splits) != set(member.train.split):
            continue
        total = sum(found.sizes.get(split, 0) for split in member.train.split)
        if held_out is None or wanted is None or not _is_share(held_out, found) or wanted != total:
            continue
        key = "env" if len(spec.env.members) == 1 else f"env.members.{name}"
        yield Refusal(
            f"{key}.train.num_tasks",
            f"{wanted} tasks of {named(found.train_splits)}, which has {total}, and a share of them is to be held out;"
            f" three ways out: {key}.train.num_tasks=null (all that are not held out), {key}.held_out=null (no"
            f" evaluation), or {key}.held_out.split={found.train_splits[0]} {key}.held_out.overlap=allowed"
            " (evaluated on training tasks, and labelled so)",
        )


def _trains_nothing(member: EnvMember, found: HeldOutRecord | None) -> bool:
    """Returns whether there are no training tasks, by the spec or because all splits are for evaluation."""
    if found is None or member.train.split != ("train",):
        return not member.train.split
    return bool(found.sizes) and not found.train_splits


def _is_share(wanted: HeldOutSpec, found: HeldOutRecord) -> bool:
    if wanted.indices is not None or wanted.overlap is Overlap.ALLOWED:
        return False
    return wanted.split in found.train_splits if wanted.split is not None else found.rule is Rule.SHARE


def _record_of(outputs: Path, request: Mapping[str, Any]) -> HeldOutRecord | None:
    """The held-out record of any task set of the same environment; None: there is none."""
    for file in sorted((outputs / STORE).glob(f"*/{MANIFEST}")):
        try:
            manifest = read_manifest(file.parent)
        except (OSError, ValueError):
            continue
        for name, record in manifest.held_out.items():
            other = manifest.request["members"].get(name, {})
            if all(other.get(field) == request.get(field) for field in IDENTITY):
                return record
    return None


def _rule(wanted: HeldOutSpec | None) -> str:
    if wanted is None:
        return "nothing (held_out=null)"
    if wanted.split is None:
        own = ", ".join(OWN_SPLITS[:-1])
        return (
            f"the environment's own {own} or {OWN_SPLITS[-1]}, else {wanted.fraction:g} of its training tasks by hash;"
            " known after prepare"
        )
    overlap = ", which training leaves in (overlap=allowed)" if wanted.overlap is Overlap.ALLOWED else ""
    return f"of split {wanted.split}{overlap}; known after prepare"
