"""The screen while `xp eval` plays: on a real terminal a bar with running mean and cost, elsewhere plain lines."""

from __future__ import annotations

import os
import pty
import re
from pathlib import Path

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.child import Fork
from tests.support.endpoint_evaluations import ROOT, knows_some, outputs, prepared, words
from xp.__main__ import main

__all__ = ["outputs", "prepared"]
pytestmark = pytest.mark.integration

PRICES = ("model.price_in=100", "model.price_out=1000")
"""Dollars: 20 tokens read and 5 written make 0.007 an episode."""


def on_a_terminal(command: list[str]) -> tuple[str, int]:
    """Output of a command on a terminal of 100 columns, as text without colours, and its exit code."""
    ours, theirs = pty.openpty()

    def program() -> int:
        for number in range(3):
            os.dup2(theirs, number)
        return main(command)

    fork = Fork(program, ROOT, {"COLUMNS": "100", "TERM": "xterm"})
    os.close(theirs)
    pieces = []
    while piece := _read(ours):
        pieces.append(piece)
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(pieces).decode())
    return text, fork.end().returncode


def _read(terminal: int) -> bytes:
    """The next bytes; none once the other side is closed, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_a_terminal_shows_a_bar_and_a_pipe_plain_lines(
    outputs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(ChatServer(write=knows_some, latency_s=0.1)) as server:
        asked = words(
            server,
            outputs,
            *PRICES,
            "evaluation.num_tasks=8",
            "eval.concurrency=2",
        )
        shown, code = on_a_terminal(asked)
        assert code == 0, shown
        assert main([*asked, "--again"]) == 0  # capfd takes its output as a file would
    states = re.findall(r"multiply / stub .*?(\d+)/8 reward (\d\.\d{3}), \$(\d\.\d{3})", shown)
    assert len(states) >= 2, shown
    assert "\\u001b" not in shown
    for done, mean, cost in states:
        assert float(cost) == pytest.approx(
            0.007 * int(done), abs=0.0151
        )  # an episode's cost may be a moment ahead
        assert 0 <= float(mean) <= 1
    assert [int(done) for done, _, _ in states] == sorted(int(done) for done, _, _ in states)
    assert re.search(r"multiply +stub +8 +0\.\d{3}", shown)  # the table stays
    plain = capfd.readouterr()
    assert not re.search("[\x1b\r━]", plain.out + plain.err)
    assert re.search(r"multiply +stub +8 +0\.\d{3}", plain.out)
