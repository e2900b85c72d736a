"""The live panel of a run: on a terminal in the place of the stages' output, elsewhere every line."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.test_progress import progressing
from xp.cli.display import live_console
from xp.cli.progress import LINES, Panel, screen
from xp.lib.progress import ProgressBar
from xp.lib.terminal import Screen

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


def test_a_terminal_sees_stages_steps_curves_and_last_lines(tmp_path: Path, terminal: Terminal) -> None:
    run = progressing(tmp_path)
    with before(terminal), screen(run, has_panel=True) as echo:
        echo("loading\nstep 1\r")
    text = drawn(terminal)
    for part in (f"─ {run.name}  0:0", "train pending", "step 36 of 72  █████░░░░░ 50%", "0.347 -> 0.981  (36 steps)"):
        assert part in text
    last = text[text.rindex(run.name) :]
    assert "loading" not in last
    assert max(len(line) for line in last.splitlines()) <= 80


def test_words_of_a_stage_cannot_act_on_the_terminal(tmp_path: Path, terminal: Terminal) -> None:
    panel = Panel(progressing(tmp_path))
    panel.echo(f"{HOSTILE}[bold]named[/bold]\n")
    with before(terminal):
        live_console().print(panel.view())
    assert "[bold]named[/bold]" in terminal.getvalue()
    for word in ("\x1b]", "\x1b[2J", "\x9b", "\u202e"):
        assert word not in terminal.getvalue()


def test_the_last_state_of_bars_and_last_lines_stay(tmp_path: Path) -> None:
    panel = Panel(tmp_path / "not there yet")
    panel.echo("bar 1%\rbar 50%\r")
    panel.echo("bar 100%\n")
    assert list(panel._lines) == ["bar 100%"]
    panel.echo("".join(f"line {number}\n" for number in range(20)))
    assert list(panel._lines) == [f"line {number}" for number in range(20 - LINES, 20)]
    assert panel.view() is not None


def test_a_progress_bar_of_a_command_moves_the_cursor(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen(terminal))
    with ProgressBar("prepare", 2, "tasks") as progress:
        progress.show(1, "")
    assert "1/2" in drawn(terminal)
    assert "\\u001b" not in terminal.getvalue()
