"""A job's output on its way to the screen and the file: lines, progress bars, colours, secrets."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xp.execution.launchers.follow import Tail
from xp.execution.launchers.node.log import MAX_LINE, PROGRESS_EVERY_S, LogStream, drain
from xp.lib.secrets.redaction import Redactor
from xp.lib.secrets.shapes import TOKENS as PREFIXES
from xp.lib.terminal import plain, redrawn

SECRET = "XPCANARY_0123456789"


class Logged:
    """A stream, its file and its screen."""

    def __init__(self, *, on_screen: bool = False, redactor: Redactor | None = None) -> None:
        self._file = io.BytesIO()
        self._screen: list[str] = []
        self.stream = LogStream(
            self._file, redactor or Redactor([SECRET]), self._screen.append, on_screen=on_screen
        )

    def feed(self, *texts: str | bytes) -> Logged:
        for text in texts:
            self.stream.feed(text.encode() if isinstance(text, str) else text)
        return self

    def close(self) -> Logged:
        self.stream.close()
        return self

    @property
    def file(self) -> str:
        return self._file.getvalue().decode()

    @property
    def screen(self) -> str:
        return "".join(self._screen)


def test_a_line_is_shown_when_it_is_whole() -> None:
    logged = Logged().feed("one\ntw")
    assert logged.file == logged.screen == "one\n"
    assert logged.feed("o\n").file == "one\ntwo\n"


def test_a_character_that_arrives_in_two_pieces_is_whole() -> None:
    assert Logged().feed("ü→\n".encode()[:3], "ü→\n".encode()[3:]).file == "ü→\n"
    assert Logged().feed(b"\xff broken\n").file == "\ufffd broken\n"


def test_a_progress_bar_is_one_line_with_its_last_state() -> None:
    logged = Logged().feed(*(f"\r{percent:3}%|###" for percent in range(101)), "\n").close()
    assert logged.file.splitlines()[-1] == "100%|###"
    assert (
        len(logged.file.splitlines()) == 2
    )  # its first state, so that one sees it began, and its last
    assert logged.screen == logged.file


def test_the_last_state_of_a_bar_is_in_the_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged().feed("50%\r")
    monkeypatch.setattr(
        "xp.execution.launchers.node.log.monotonic", lambda: time.monotonic() + PROGRESS_EVERY_S + 1
    )
    logged.feed("\r100%\r", "\r100%\n", "the end\n")
    assert logged.file.splitlines() == ["50%", "100%", "the end"]


def test_a_line_printed_above_a_bar_is_a_line() -> None:
    logged = Logged().feed("\r\x1b[2K10%", "\r\x1b[2Kloss is 3\n20%", "\r\x1b[2K30%\n")
    assert "loss is 3" in logged.file.splitlines()


def test_an_unfinished_line_is_shown_to_who_watches_and_not_twice() -> None:
    logged = Logged(on_screen=True).feed("loading (1 of 2)")
    assert logged.screen == ""
    logged.stream.idle()
    logged.stream.idle()
    assert logged.screen == "loading (1 of 2)"
    assert logged.file == ""
    logged.feed(" done\n")
    assert logged.screen == "loading (1 of 2) done\n"
    assert logged.file == "loading (1 of 2) done\n"


def test_colours_inside_a_secret_do_not_save_it_from_the_redactor() -> None:
    logged = Logged(on_screen=True).feed(f"key \x1b[1m{SECRET[:8]}\x1b[0m{SECRET[8:]}\n")
    assert logged.screen == logged.file == "key [REDACTED]\n"


@pytest.mark.parametrize(
    "attack",
    [
        "\x1b]52;c;Y2xpcGJvYXJk\x07",
        "\x1b]8;;http://evil\x1b\\",
        "\x1b[6n",
        "\x1bc",
        "\x07",
        "\x00",
    ],
)
def test_what_could_do_harm_in_a_terminal_is_taken_out(attack: str) -> None:
    assert redrawn(f"a{attack}b") == "ab"
    assert plain(f"a{attack}b") == "ab"


def test_an_endless_line_is_cut_and_its_secret_is_not() -> None:
    text = "x" * (MAX_LINE - 5) + SECRET + "y" * 100 + "\n"
    logged = Logged().feed(*(text[at : at + 4096] for at in range(0, len(text), 4096))).close()
    assert "XPCANARY" not in logged.file
    assert logged.file.replace("\n", "") == text.replace(SECRET, "[REDACTED]").replace("\n", "")


@given(
    st.lists(
        st.sampled_from(
            [SECRET, SECRET[:5], "a", " ", "\r", "\n", "\r\n", "\x1b[1m", "\x1b[2K", "ü"]
        ),
        max_size=30,
    ),
    st.integers(1, 7),
    st.booleans(),
)
def test_however_it_arrives_nothing_is_lost_and_nothing_leaks(
    parts: list[str], size: int, on_screen: bool
) -> None:
    data = "".join(parts).encode()
    logged = Logged(on_screen=on_screen)
    for at in range(0, len(data), size):
        logged.feed(data[at : at + size])
        logged.stream.idle()
    logged.close()
    assert SECRET not in logged.file + re.sub(r"\x1b\[[0-9]*[mK]", "", logged.screen)
    final_lines = [
        line for line in "".join(parts).replace("\r\n", "\n").split("\n") if "\r" not in line
    ]
    for line in final_lines:
        assert plain(line).replace(SECRET, "[REDACTED]").strip() in logged.file


@pytest.mark.parametrize("size", [3, 10])
def test_a_log_is_read_in_pieces_of_whole_lines(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xp.execution.launchers.follow.PIECE_BYTES", size)
    text = "one ü→\n\ntwo\nthree is longer than a piece\nfour"
    tail = Tail(tmp_path / "log.txt")
    assert list(tail.read()) == []
    (tmp_path / "log.txt").write_text(text)
    pieces = list(tail.read())
    assert "".join(pieces) == text
    assert size != 10 or pieces[:2] == ["one ü→\n", "\ntwo\n"]
    assert list(tail.read()) == []
    with (tmp_path / "log.txt").open("a") as log:
        log.write(" and more\n")
    assert "".join(tail.read()) == " and more\n"


TOKENS = (
    *(
        f"{prefix}0123456789abcdefghijABCDEFGHIJ0123456789"
        for prefix in PREFIXES
        if prefix[0] not in "AaSed"
    ),
    "AKIAIOSFODNN7EXAMPLE",
    "AIza0123456789abcdefghijABCDEFGHIJ01234",
    "sk-0123456789abcdef",
    "SG.0123456789abcdef.0123456789abcdef",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "dop_v1_" + "0123456789abcdef" * 4,
    "https://user:0123456789@host",
)


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_by_shape_is_masked_wherever_a_long_line_is_cut(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xp.execution.launchers.node.log.MAX_LINE", 100)
    for end in range(98, 104 + len(token)):
        start = (" ", '"', f"{SECRET} ")[end % 3]
        line = "-" * (end - len(token) - len(start)) + start + token + " and more" + " " * 100
        logged = Logged(on_screen=True)
        for at in range(0, len(line), 23):
            logged.feed(line[at : at + 23])
            logged.stream.idle()
        whole = (logged.close().file + logged.screen).replace("\n", "")
        assert token[8:-1] not in whole, (end, whole)
        expected = Redactor([SECRET]).redact(line)
        assert "".join(logged.file.split()) == "".join(expected.split())


def test_a_log_ends_with_its_process_though_an_orphan_keeps_the_output_open() -> None:
    source, kept_open = os.pipe()
    os.write(kept_open, b"done\n")
    file = io.BytesIO()
    with os.fdopen(source) as output:
        process: Any = SimpleNamespace(stdout=output, poll=lambda: 0)
        stream = LogStream(file, Redactor(), lambda _: None, on_screen=False)
        reader = threading.Thread(target=drain, args=(process, stream), daemon=True)
        reader.start()
        reader.join(20)
        os.close(kept_open)
    assert not reader.is_alive()
    assert file.getvalue() == b"done\n"
