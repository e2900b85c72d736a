"""Converts `run.json` to a RunRecord; checks every text that may become a path, an argument or a process id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from xp.launchers.native_ids import is_launcher, is_native_id
from xp.lib.names import is_name, is_variable
from xp.runs.attempts import FORMAT, AttemptRecord, Provenance, RunRecord, RunStatus, StageRecord

MAX_ATTEMPTS = 10_000
MAX_TEXT = 1_000


def record_of(value: Any) -> RunRecord:
    """The record in a JSON value; raises ValueError with the first fault."""
    whole = _mapping(value, "the record")
    if whole.get("format") != FORMAT:
        raise ValueError(f"format: not one that this version of xp reads, which is {FORMAT}")
    _keys(whole, {"format", *_names(RunRecord)}, "the record")
    run_id = _checked(whole["run_id"], is_name, "run_id", "the name of a directory")
    secrets = tuple(_checked(name, is_variable, "secrets", "variables") for name in _list(whole["secrets"], "secrets"))
    found = _list(whole["attempts"], "attempts")
    if len(found) > MAX_ATTEMPTS:
        raise ValueError(f"attempts: {len(found)}, expected at most {MAX_ATTEMPTS}")
    attempts = tuple(_attempt(one, run_id, number) for number, one in enumerate(found, start=1))
    status = _status(whole["status"], "status")
    if status is RunStatus.RUNNING and not attempts:
        raise ValueError("status: running, without an attempt")
    user = _checked(whole["user"], _is_text, "user", "a text")
    directory = _checked(whole["directory"], _is_text, "directory", "a text")
    return RunRecord(run_id, status, secrets, attempts, user, directory)


def _attempt(value: Any, run_id: str, number: int) -> AttemptRecord:
    what = f"attempt {number}"
    known = _mapping(value, what)
    _keys(known, _names(AttemptRecord), what, optional={"supervisor", "host", "training"})
    if known["number"] != number or isinstance(known["number"], bool):
        raise ValueError(f"{what}: its number is {known['number']!r}")
    place = f"runs/{run_id}/attempt_{number}"
    stages = tuple(_stage(one, place) for one in _list(known["stages"], what))
    return AttemptRecord(
        number=number,
        status=_status(known["status"], what),
        started=_checked(known["started"], _is_time, what, "a time"),
        ended=_or_none(known["ended"], _is_time, what, "a time"),
        provenance=_provenance(known["provenance"], what),
        stages=stages,
        supervisor=_or_none(known.get("supervisor"), _is_process, what, "a process id"),
        host=_or_none(known.get("host"), _is_text, what, "a host"),
        training=None if known.get("training") is None else length_of(known["training"]),
    )


def length_of(value: Any) -> Mapping[str, int | None]:
    """Length of a training, as its stage wrote it; raises ValueError for a value of another form."""
    known = _mapping(value, "training")
    _keys(known, {"epochs", "num_steps", "num_tasks"}, "training")
    counts = {
        name: _checked(known[name], _is_count, f"training: {name}", "a count") for name in known if name != "epochs"
    }
    return {"epochs": _or_none(known["epochs"], _is_count, "training: epochs", "a count"), **counts}


def _stage(value: Any, place: str) -> StageRecord:
    known = _mapping(value, place)
    _keys(known, _names(StageRecord), place, optional=_names(StageRecord) - {"name"})
    name = _checked(known["name"], is_name, f"{place}: name", "the name of a directory")
    what = f"{place}/{name}"
    launcher = _or_none(known.get("launcher"), is_launcher, f"{what}: launcher", "a launcher")
    is_its = lambda text: launcher is not None and is_native_id(launcher, text)  # noqa: E731
    log = f"{what}/log.txt"
    stand_ins = _list(known.get("stand_ins", []), f"{what}: stand_ins")
    return StageRecord(
        name=name,
        status=_status(known.get("status", "pending"), what),
        exit_code=_or_none(known.get("exit_code"), _is_exit_code, f"{what}: exit_code", "an exit code"),
        started=_or_none(known.get("started"), _is_time, what, "a time"),
        ended=_or_none(known.get("ended"), _is_time, what, "a time"),
        log=_or_none(known.get("log"), lambda text: text == log, f"{what}: log", log),
        launcher=launcher,
        native_id=_or_none(known.get("native_id"), is_its, f"{what}: native_id", f"a job of launcher={launcher}"),
        stand_ins=tuple(_checked(text, _is_text, f"{what}: stand_ins", "a text") for text in stand_ins),
    )


def _provenance(value: Any, what: str) -> Provenance:
    known = _mapping(value, f"{what}: provenance")
    _keys(known, _names(Provenance), f"{what}: provenance")
    versions = _mapping(known["versions"], f"{what}: versions")
    texts = [known["xp"], known["python"], *versions]
    for text in (*texts, *(one for one in (known["commit"], *versions.values()) if one is not None)):
        _checked(text, _is_text, f"{what}: provenance", "a text")
    if known["is_dirty"] not in (None, True, False):
        raise ValueError(f"{what}: is_dirty is {known['is_dirty']!r}")
    return Provenance(known["xp"], known["python"], known["commit"], known["is_dirty"], dict(versions))


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what}: no JSON object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what}: no list")
    return value


def _keys(value: Mapping[str, Any], names: set[str], what: str, optional: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    missing, unknown = sorted(names - optional - set(value)), sorted(set(value) - names)
    if missing or unknown:
        listed = ", ".join(repr(name[:40]) for name in (missing or unknown)[:5])
        raise ValueError(f"{what}: {'lacks' if missing else 'unknown key'} {listed}")


def _status(value: Any, what: str) -> RunStatus:
    if not isinstance(value, str) or value not in set(RunStatus):
        raise ValueError(f"{what}: {_short(value)} is not a status; legal ones are {', '.join(RunStatus)}")
    return RunStatus(value)


def _checked(value: Any, is_legal: Callable[[Any], bool], what: str, expected: str) -> Any:
    if not is_legal(value):
        raise ValueError(f"{what}: {_short(value)}; expected {expected}")
    return value


def _or_none(value: Any, is_legal: Callable[[Any], bool], what: str, expected: str) -> Any:
    return None if value is None else _checked(value, is_legal, what, f"{expected} or null")


def _is_time(value: Any) -> bool:
    try:
        is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
        return is_plain and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**53


def _is_exit_code(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


def _is_process(value: Any) -> bool:
    """Returns whether a value can be a process id; 1 and below mean the first process, groups, or all processes."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 < value < 2**31


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
