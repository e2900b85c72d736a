"""The lock of a run, `lock.json`: what its result depends on, by name, so that another run can be compared with it.

Digests of the spec and the code are known before the run begins. Its training process adds the rest (xp.worker.facts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from xp import __version__
from xp.errors import ExitCode, XpError
from xp.execution.launchers.files import PACKAGE, shipped_files
from xp.execution.record import number_of
from xp.execution.run_directory import xp_command
from xp.lib.atomic import write_atomically
from xp.lib.codec import JsonFile, from_value
from xp.lib.digest import digest_of, file_digest
from xp.lib.loaded_code import FILE as LOADED
from xp.lib.loaded_code import loaded
from xp.lib.nested import leaves, varied
from xp.lib.reading import config_of, json_of
from xp.lib.text import first_of
from xp.worker.facts import FILE as FACTS
from xp.worker.facts import Facts, differing

FILE: Final = "lock.json"
CHANGEABLE: Final = (
    "training.num_steps",
    "training.epochs",
    "training.checkpoint_every",
    "training.export_every",
    "training.keep_checkpoints",
    "training.max_void_fraction",
    "training.on_nonfinite",
    "training.max_logprob_gap",
    "training.on_symptom",
    "training.max_hours",
    "training.budget_usd",
    "hardware.usd_per_hour",
    "hardware.usd_per_million_tokens",
    "hardware.name",
    "hardware.accelerator",
    "hardware.accelerator_memory_gb",
    "hardware.num_cpus",
    "hardware.memory_gb",
    "evaluation.",
    "launcher.",
    "preparation.",
    "tracking",
)
"""Keys that a resumed run may change; `section.` is all of a section. Another key would make it another experiment
under the same name. The number of accelerators stays: batches and the shards of a checkpoint depend on it."""
_HERE: Final = ("outputs",)
"""Keys that differ from place to place and decide nothing."""
_SPEC: Final = "spec"
_CODE: Final = "code."
_SFT_DATA: Final = "sft.data"
_XP: Final = f"{_CODE}{PACKAGE.name}"
_ACCEPTABLE: Final = (_CODE, _SFT_DATA)
MOST_NAMED: Final = 5
"""Largest number of files or keys in one line."""


@dataclass(frozen=True)
class Lock(JsonFile):
    """Everything that a run's result depends on."""

    attempt: int
    """Attempt that it describes, the last one that trained."""
    facts: Facts
    """Name -> digest or version: `spec`, `seeds.KEY`, `code.MODULE`, `versions.PACKAGE`, `model.PART`, ..."""
    accepted: tuple[str, ...] = ()
    """Facts whose change the user has accepted (`runs trust RUN --accept`)."""
    format: int = 1


@dataclass(frozen=True)
class LockInputs:
    """Inputs of the digests in a lock, which name the keys and files behind a difference."""

    spec: Mapping[str, Any]
    """The spec's JSON values."""
    locations: Mapping[str, Path]
    """Module -> its directory or file."""

    def files(self, module: str) -> dict[str, str] | None:
        """File -> sha256 of a module's code. None means that it is not here."""
        location = self.locations.get(module)
        return None if location is None else _files(location)


def inputs_of(spec: Mapping[str, Any], modules: Sequence[Path]) -> LockInputs:
    """The inputs of a run that begins now: its spec, this xp, and the user's modules."""
    return LockInputs(spec, _by_name((PACKAGE, *modules)))


def _by_name(locations: Iterable[Path]) -> dict[str, Path]:
    """Module -> its directory or file."""
    return {
        location.stem if location.is_file() else location.name: location for location in locations
    }


def recorded_inputs(directory: Path, attempt: int) -> LockInputs:
    """The inputs that an attempt of a run has recorded."""
    here = directory / f"attempt_{attempt}"
    spec = json_of(here / "plan.json", ExitCode.RUN_DIR, below=directory)["spec"]
    return LockInputs(spec, _by_name(here.glob("code/*")))


def facts_and_inputs(directory: Path) -> tuple[Facts, LockInputs]:
    """Facts and inputs of a run; raises XpError(RUN_DIR) if it has no lock."""
    lock = read_lock(directory)
    return lock.facts, recorded_inputs(directory, lock.attempt)


def planned_facts(inputs: LockInputs) -> dict[str, str]:
    """Facts that are known before a run begins."""
    values = _values(inputs.spec)
    seeds = {
        f"seeds.{key}": str(value)
        for key, value in values.items()
        if key.rpartition(".")[2].endswith("seed")
    }
    code = {
        f"{_CODE}{name}": digest_of(_files(location))
        for name, location in sorted(inputs.locations.items())
    }
    return {
        _SPEC: spec_digest(inputs.spec),
        **seeds,
        "versions.xp": __version__,
        **code,
        **_dialogues(inputs.spec),
    }


def _dialogues(spec: Mapping[str, Any]) -> dict[str, str]:
    """The fact about a spec's file of dialogues, if it has one that is here."""
    data = Path((spec.get("sft") or {}).get("data") or "")
    if data.is_absolute() and data.is_file():
        return {_SFT_DATA: file_digest(data)}
    return {}


def has_same_data(directory: Path, spec: Mapping[str, Any]) -> bool:
    """Returns whether the file of dialogues is still the one that a run has read."""
    if not (directory / FILE).is_file():
        return True
    return all(
        read_lock(directory).facts.get(name, now) == now for name, now in _dialogues(spec).items()
    )


def spec_digest(spec: Mapping[str, Any]) -> str:
    """Digest of a spec's values, without what differs from place to place."""
    return digest_of(_values(spec))


def complete_lock(directory: Path) -> None:
    """Adds the facts of the training's process to the lock of its attempt, if they are there."""
    if (directory / FILE).is_file():
        lock = read_lock(directory)
        if (directory / f"attempt_{lock.attempt}/train" / FACTS).is_file():
            write_atomically(directory / FILE, lock.to_json())


def read_lock(directory: Path) -> Lock:
    """The lock of a run, with the facts that its training has written so far.

    Raises:
        XpError: (RUN_DIR) there is none, or it is damaged.
    """
    file = directory / FILE
    lock = config_of(file, Lock.from_json, what="a lock", below=directory)
    # An attempt that trained no more has the facts of the one before.
    files = () if "tasks.content" in lock.facts else directory.glob(f"attempt_*/train/{FACTS}")
    for newest in sorted(files, key=lambda file: number_of(file.parents[1]))[-1:]:
        facts = json_of(newest, ExitCode.RUN_DIR, below=directory)
        facts |= {
            f"{_CODE}{location.stem}": digest
            for location, digest in loaded(newest.with_name(LOADED)).items()
        }
        return from_value(Lock, asdict(replace(lock, facts={**facts, **lock.facts})))
    return lock


def differences(first: tuple[Facts, LockInputs], second: tuple[Facts, LockInputs]) -> list[str]:
    """One line for each fact that two runs do not share; spec and code are named by key and file."""
    lines = []
    for line in differing(first[0], second[0]):
        name = line.partition(": ")[0]
        details: list[str] = []
        if name == _SPEC:
            details = list(changed_keys(first[1].spec, second[1].spec))
        elif name.startswith(_CODE):
            module = name.removeprefix(_CODE)
            before = first[1].files(module)
            after = second[1].files(module)
            if before is not None and after is not None:
                details = sorted(varied([before, after]))
        lines.append(f"{name}: {first_of(details, MOST_NAMED)}" if details else line)
    return lines


def is_changeable(key: str) -> bool:
    """Returns whether a resumed run may change a key."""
    return key in CHANGEABLE or key.startswith(
        tuple(name for name in CHANGEABLE if name.endswith("."))
    )


def check_resumed(directory: Path, inputs: LockInputs) -> list[str]:
    """Compares code and data of a run that is resumed with its lock; returns what has changed and may.

    Raises:
        XpError: (CONFIG) the user's code or file of dialogues changed.
    """
    if not (directory / FILE).is_file():
        return []
    lock = read_lock(directory)
    recorded = recorded_inputs(directory, lock.attempt)
    now = planned_facts(inputs)
    lines = differences((_resumed_facts(lock.facts), recorded), (_resumed_facts(now), inputs))
    names = [line.partition(": ")[0] for line in lines]
    refused = [
        name for name in names if name.startswith(_ACCEPTABLE) and name not in (_XP, *lock.accepted)
    ]
    if refused:
        command = xp_command(
            f"runs trust {directory.name} --accept {' '.join(refused)}", directory.parent.parent
        )
        changed = "; ".join(
            line for line, name in zip(lines, names, strict=True) if name in refused
        )
        raise XpError(
            f"code or data of {directory.name} changed, so that episodes before and after it may differ: {changed}\n"
            f"restore it, start a new run, or accept the change: {command}"
        )
    return lines


def _resumed_facts(facts: Facts) -> Facts:
    """Facts that a resume compares before it begins: about code and dialogues."""
    return {
        name: value
        for name, value in facts.items()
        if name.startswith((*_ACCEPTABLE, "versions.xp"))
    }


def accept(directory: Path, names: Sequence[str]) -> None:
    """Records facts whose change a resume accepts; raises XpError(CONFIG) for a fact that the lock does not have."""
    lock = read_lock(directory)
    legal = [name for name in lock.facts if name.startswith(_ACCEPTABLE)]
    unknown = sorted(set(names).difference(legal))
    if unknown:
        users = ", ".join(name for name in legal if name != _XP) or "none"
        raise XpError(
            f"--accept {unknown[0]}: only your code or data can be accepted; here: {users}"
        )
    accepted = tuple(sorted({*lock.accepted, *names}))
    write_atomically(directory / FILE, replace(lock, accepted=accepted).to_json())


def _values(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Key path -> value of a spec, without what differs from place to place."""
    return {key: value for key, value in leaves(spec) if key not in _HERE}


def changed_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """Keys in which two specs differ, each as `key: value -> value`."""
    before = _values(first)
    after = _values(second)
    for key in varied([before, after]):
        yield f"{key}: {before.get(key)} -> {after.get(key)}"


def _files(location: Path) -> dict[str, str]:
    """File -> sha256 of a module's code, as a run copies it."""
    root = location.parent
    return {str(file.relative_to(root)): file_digest(file) for file in shipped_files(location)}
