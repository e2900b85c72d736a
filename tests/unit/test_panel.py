"""The live panel of a run: on a terminal in the place of the stages' output, elsewhere every line."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.recorded_runs import progressing
from xp.cli.display import live_console
from xp.cli.progress import LINES, Panel, screen
from xp.composition import compose
from xp.episode.metrics_file import MetricsFile
from xp.execution.record import (
    Provenance,
    RunRecord,
    RunStatus,
    begin_attempt,
    read_record,
    update_stage,
    write_record,
)
from xp.lib.progress import LINE_EVERY_S, ProgressBar
from xp.lib.terminal import Screen
from xp.worker.places import NUM_UPDATES

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b5A\u202e"


class Terminal(io.StringIO):
    """Standard output with a person before it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return found


@contextmanager
def before(terminal: Terminal) -> Iterator[None]:
    """Prints go to the terminal; a fixture cannot do it, since pytest takes the output of a test by itself."""
    own, sys.stdout = sys.stdout, Screen(terminal)
    try:
        yield
    finally:
        sys.stdout = own


def drawn(terminal: Terminal) -> str:
    """All that was drawn, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


def test_a_terminal_sees_stages_steps_curves_and_last_lines(
    tmp_path: Path, terminal: Terminal
) -> None:
    run = progressing(tmp_path)
    with before(terminal), screen(run, has_panel=True) as echo:
        echo("loading\nstep 1\r")
    text = drawn(terminal)
    for part in (
        f"─ {run.name}  0:0",
        "train pending",
        "step 36 of 72  █████░░░░░ 50%",
        "0.347 -> 0.981  (36 steps)",
    ):
        assert part in text
    last = text[text.rindex(run.name) :]
    assert "loading" not in last
    assert max(len(line) for line in last.splitlines()) <= 80


def begun(outputs: Path, stages: tuple[str, ...], *overrides: str) -> Path:
    """A run with a plan whose stages are pending."""
    spec = compose([f"outputs={outputs}", *overrides])
    run = outputs / "runs" / "begun"
    (run / "attempt_1").mkdir(parents=True)
    (run / "attempt_1/plan.json").write_text(json.dumps({"spec": spec.model_dump(mode="json")}))
    record = begin_attempt(
        RunRecord("begun", RunStatus.PENDING, ()), stages, Provenance("0", "3", None, None, {})
    )
    write_record(run, record)
    return run


def view(run: Path, terminal: Terminal) -> str:
    with before(terminal):
        live_console().print(Panel(run).view())
    return drawn(terminal)


def test_a_fine_tuning_shows_its_updates_time_and_loss(tmp_path: Path, terminal: Terminal) -> None:
    run = begun(tmp_path, ("prepare", "sft", "train"), "sft.data=solve", "training.num_steps=8")
    (run / "attempt_1/sft").mkdir()
    (run / "attempt_1/sft" / NUM_UPDATES).write_text("40")
    metrics = MetricsFile(run / "metrics.jsonl", "sft", 1)
    for update, loss in ((1, 2.0), (2, 1.0), (3, 0.5)):
        metrics.write(update, {"training/loss": loss, "time/update_s": 10.0})
    text = view(run, terminal)
    assert re.search(r"update 3 of 40  █░{9} 8%  6:\d\d left", text)
    assert "2.000 -> 0.500  (3 updates)" in text
    write_record(run, update_stage(read_record(run), "sft", status=RunStatus.SUCCEEDED))
    assert re.search(r"step 0 of 8  ░{10} 0%", view(run, terminal))


def test_words_of_a_stage_cannot_act_on_the_terminal(tmp_path: Path, terminal: Terminal) -> None:
    panel = Panel(progressing(tmp_path))
    panel.echo(f"{HOSTILE}[bold]named[/bold]\n")
    with before(terminal):
        live_console().print(panel.view())
    shown = terminal.getvalue()
    assert "[bold]named[/bold]" in shown
    assert not [word for word in ("\x1b]", "\x1b[2J", "\x9b", "\u202e") if word in shown]


def test_the_last_state_of_bars_and_last_lines_stay(tmp_path: Path) -> None:
    panel = Panel(tmp_path / "not there yet")
    panel.echo("bar 1%\rbar 50%\r")
    panel.echo("bar 100%\n")
    assert list(panel._lines) == ["bar 100%"]
    panel.echo("".join(f"line {number}\n" for number in range(20)))
    assert list(panel._lines) == [f"line {number}" for number in range(20 - LINES, 20)]
    assert panel.view() is not None


def test_progress_in_a_pipe_ends_with_all_parts_and_repeats_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressBar("prepare", 4, "tasks") as progress:
        progress.show(1, "")
        progress._last_line -= LINE_EVERY_S
        progress.show(2, "1/s")
        progress.show(3, "1/s")
        for _ in range(2):
            progress.show(4, "1/s")
    assert capsys.readouterr().err.splitlines() == [
        "prepare: 2/4 tasks, 1/s",
        "prepare: 4/4 tasks, 1/s",
    ]
