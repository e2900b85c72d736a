"""RunSpec -> the code that a run imports or starts in addition to xp and the trainer, for `plan` and `runs trust`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xp.envs.target import module_of
from xp.planning.stages.episode import user_modules
from xp.spec import EnvMember, RunSpec


def named_code(spec: RunSpec) -> list[str]:
    """One line for each kind of code that a spec names; the code is not looked up, so it may be in another Python.

    Check it before you run another person's spec: it may name any code.
    """
    members = list(spec.env.members.values())
    modules = sorted({*user_modules(spec), *(name for one in members for name in _modules_elsewhere(one))} - {"xp"})
    programs = [("Python of the jobs", spec.backend.runtime.python), ("image of the jobs", spec.backend.runtime.image)]
    programs += [("Python of an environment", one.python) for one in members]
    programs += [("image of an environment", one.image) for one in members]
    tasks = [one.target for one in members if one.provider == "inspect" and one.target is not None]
    folders = [one.target for one in members if one.provider == "harbor" and one.target is not None]
    return [
        *([f"would import modules: {', '.join(modules)}"] if modules else []),
        *(f"would import the task of inspect_ai: {target}" for target in dict.fromkeys(tasks)),
        *(f"would run the programs of the tasks in: {target}" for target in dict.fromkeys(folders)),
        *(f"would start the {what}: {name}" for what, name in dict.fromkeys(programs) if name is not None),
        *(
            f"would pass this to the trainer, which may import it: backend.overrides.{key}={value}"
            for key, value in _overrides(spec.backend.overrides)
        ),
    ]


def _modules_elsewhere(member: EnvMember) -> Iterator[str]:
    """Top-level modules that the environment's own Python imports."""
    if member.serve is not None:
        yield member.serve.partition(":")[0].partition(".")[0]
    if member.provider == "verifiers" and member.target is not None:
        yield module_of(member.target)


def _overrides(overrides: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Native keys of the trainer whose value may name code: a dotted name, a file, or a module and a name in it.

    What a trainer imports by such a key differs between versions, so values decide, and a value too many is shown.
    """
    for key, value in overrides.items():
        if "trust" in str(key) and value not in (False, None):
            yield str(key), str(value)
        elif isinstance(value, Mapping):
            yield from ((f"{key}.{below}", text) for below, text in _overrides(value))
        elif any(map(_may_name_code, _texts(value))) or _is_pair_of_names(value):
            yield str(key), str(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from (str(key), *_texts(below))
    elif isinstance(value, Sequence):
        for below in value:
            yield from _texts(below)


def _may_name_code(text: str) -> bool:
    if "." not in text and ":" not in text:
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def _is_pair_of_names(value: Any) -> bool:
    """Returns whether a value is a module and a name in it, as Megatron's `spec` has them."""
    return isinstance(value, Sequence) and len(value) == 2 and all(isinstance(one, str) for one in value)
