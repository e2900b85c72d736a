"""The live panel of a run: on a terminal in the place of the stages' output, elsewhere every line."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.recorded_runs import progressing
from xp.cli.display import live_console
from xp.cli.progress import Panel, screen
from xp.lib.progress import LINE_EVERY_S, ProgressBar
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


def test_words_of_a_stage_cannot_act_on_the_terminal(tmp_path: Path, terminal: Terminal) -> None:
    panel = Panel(progressing(tmp_path))
    panel.echo(f"{HOSTILE}[bold]named[/bold]\n")
    with before(terminal):
        live_console().print(panel.view())
    shown = terminal.getvalue()
    assert "[bold]named[/bold]" in shown
    assert not [word for word in ("\x1b]", "\x1b[2J", "\x9b", "\u202e") if word in shown]


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
