"""A launcher that plays stages by a function, and dispatches with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.evaluations import record_of
from tests.support.launching import FakePlan
from xp.errors import XpError
from xp.execution.launchers.base import Context, Echo, Launch
from xp.execution.record import RunRecord
from xp.execution.supervise import dispatch
from xp.planning.job import Stage

Play = Callable[[Stage, Context], int]


@pytest.fixture
def small_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a copy of the package, which no stage of a fake launcher needs: copying takes most of the time."""
    monkeypatch.setattr("xp.execution.preflight.copy_package", Path.mkdir)


class FakeLauncher:
    """Plays each stage by a function and remembers what it was asked."""

    name = "local"
    is_here = True

    def __init__(self, play: Play | Sequence[int] = (), refusal: XpError | None = None) -> None:
        codes = iter(() if callable(play) else play)
        self._play: Play = play if callable(play) else lambda *_: next(codes, 0)
        self._refusal = refusal
        self._waiting: dict[str, tuple[Stage, Context]] = {}
        self.submitted: list[str] = []
        self.cancelled: list[tuple[str, bool]] = []
        self.closed: list[str] = []
        self.secrets: dict[str, dict[str, str]] = {}

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        del stages, context
        if self._refusal is not None:
            raise self._refusal

    def submit(self, stage: Stage, context: Context) -> Launch:
        key = context.key(stage.name)
        self.submitted.append(key)
        self.secrets[stage.name] = dict(context.secrets)
        self._waiting[key] = (stage, context)
        return Launch(self.name, key, "1", context.log(stage.name), "2026-01-01T00:00:00+00:00")

    def wait(self, launch: Launch, echo: Echo) -> int:
        del echo
        return self._play(*self._waiting[launch.key])

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        self.cancelled.append((launch.key, now))

    def close(self, context: Context) -> None:
        self.closed.append(context.key(""))


def go(
    one: FakePlan, outputs: Path, launcher: FakeLauncher | None = None, **options: Any
) -> RunRecord:
    echo: Echo = options.pop("echo", lambda _: None)
    made: Any = one
    launcher = launcher or FakeLauncher()
    options = {"restart_delay_s": 0.0, **options}
    try:
        return dispatch(made, launcher, outputs, echo=echo, replan=made.at, **options)
    finally:  # secrets and servers of an attempt end with it, but for those of jobs that are left to themselves
        assert one.spec.launcher.detach or {
            key.rpartition("/")[0] + "/" for key in launcher.submitted
        } <= set(launcher.closed)


def failing(one: FakePlan, outputs: Path, launcher: FakeLauncher | None = None) -> XpError:
    with pytest.raises(XpError) as caught:
        go(one, outputs, launcher)
    return caught.value


def ends(record: RunRecord) -> dict[str, tuple[str, int | None]]:
    return {item.name: (str(item.status), item.exit_code) for item in record.attempts[-1].stages}


def at(one: FakePlan, attempt: int) -> FakePlan:
    """The same plan for another attempt: its paths and its configs have another number."""

    def renumbered(made: Stage) -> Stage:
        outputs = tuple(
            name.replace("attempt_1", f"attempt_{attempt}") for name in made.job.outputs
        )
        return replace(
            made,
            job=replace(
                made.job, outputs=outputs, files={"config.json": f'{{"attempt": {attempt}}}'}
            ),
        )

    return replace(one.at(attempt), stages=tuple(renumbered(made) for made in one.stages))


def leave_outputs(stage: Stage, context: Context) -> None:
    """Writes what a stage promises: each file is the record of an evaluation of one task."""
    for name in stage.job.outputs:
        (context.outputs / name).parent.mkdir(parents=True, exist_ok=True)
        (context.outputs / name).write_text(json.dumps(record_of({"e/test/0": [0.5]})))
