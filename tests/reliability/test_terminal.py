"""No control character of a server, a model, a file or an error reaches the terminal, whichever command prints it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.support.foreign import leave_run, make_ours, record
from xp.__main__ import main
from xp.cli.arguments import COMMANDS
from xp.errors import ExitCode
from xp.lib.terminal import Screen, shown
from xp.spec.section import local_path

C0 = [chr(number) for number in range(32) if chr(number) not in "\t\n"]
C1 = [chr(number) for number in range(0x7F, 0xA0)]
BIDI = list(
    "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u00ad\u200b\u2060"
)
EVERY = "".join([*C0, *C1, *BIDI, "\U000e0041", "\ufeff"])
ACTS = "\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\x1b[0m\x1b[31mred\x9b2J\x9d0;owned\x9c\r" + EVERY


def assert_harmless(*texts: str) -> None:
    for text in texts:
        assert sorted({char for char in EVERY if char in text}) == [], text


def test_every_control_character_is_written_out() -> None:
    for character in EVERY:
        text = shown(f"a{character}b")
        assert_harmless(text)
        assert json.loads(f'"{text}"') == f"a{character}b"
    assert shown("\ud800") == "\\ud800"


def test_a_terminal_gets_colours_and_nothing_that_moves_hides_or_names() -> None:
    text = shown(ACTS, colours=True)
    assert "\x1b[31m" in text
    assert "\x1b" not in text.replace("\x1b[31m", "").replace("\x1b[0m", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


CONCEALING = ("8", "31;8", ";8", "0;008", "30;40", "38;5;0", "48;5;1", "37")


@pytest.mark.parametrize("codes", CONCEALING)
def test_no_colour_of_a_text_hides_what_follows(codes: str) -> None:
    screen = Screen(Terminal())
    screen.write(f"before\x1b[{codes}mhidden\nafter\n")
    assert screen.stream.getvalue() == f"before\\u001b[{codes}mhidden\nafter\n"


def test_a_path_of_a_spec_has_no_control_characters(tmp_path: Path) -> None:
    err = Terminal()
    with redirect_stdout(Terminal()), redirect_stderr(err):
        words = [
            "plan",
            'backend.runtime.python="/usr/bin/python3\x1b[31;8m"',
            f"outputs={tmp_path}",
        ]
        assert main(words) == ExitCode.CONFIG
    assert "'/usr/bin/python3\\x1b[31;8m' has control characters" in err.getvalue()
    for text in ("a\nb", "a\tb", "a\u202eb", "a\x9bb"):
        with pytest.raises(ValueError, match="has control characters"):
            local_path(text)
    assert local_path("Modèle mit Leerzeichen/日本") == "Modèle mit Leerzeichen/日本"


def test_runs_show_what_a_foreign_run_says_without_its_controls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    run = leave_run(tmp_path, "run", record("run", status="succeeded"))
    make_ours(run)
    (run / "attempt_1/train/log.txt").write_text(f"begins {ACTS} ends\n", encoding="utf-8")
    spec = yaml.safe_load((run / "spec.yaml").read_text())
    spec["env"]["members"] = {f"evil {ACTS}": {}}
    spec["model"]["name"] = f"evil {ACTS}"
    (run / "spec.yaml").write_text(yaml.safe_dump(spec, allow_unicode=False))
    for words in ("list", "show run", "logs run", "compare --csv"):
        assert main(["runs", *words.split(), f"outputs={tmp_path}"]) == 0
        said = capsys.readouterr()
        assert_harmless(said.out, said.err)
    assert main(["runs", "logs", "run", f"outputs={tmp_path}"]) == 0
    assert "begins" in capsys.readouterr().out
    (run / "run.json").write_text(record("run", host=ACTS, name=ACTS))
    for words in (["list"], ["show", "run"]):
        main(["runs", *words, f"outputs={tmp_path}"])
        said = capsys.readouterr()
        assert_harmless(said.out, said.err)


@pytest.mark.parametrize(
    "words",
    [
        ["plan", f"env={ACTS}"],
        ["plan", f"training.num_steps={ACTS}"],
        ["explain", ACTS],
        ["doctor", "env=openreward", "env.target=http://127.0.0.1:9", "env.variant=" + ACTS],
        ["eval", f"run={ACTS}"],
        ["plan", f"resume={ACTS}"],
        ["--config-dir", ACTS],
        ["-m", f"seed={ACTS}"],
        *([name, ACTS] for name in COMMANDS),
        ["runs", "show", ACTS],
        *(["tasks", "verify", ACTS], ["env", "check", ACTS]),
    ],
    ids=lambda words: "-".join(word for word in words if ACTS not in word),
)
def test_errors_repeat_what_was_given_without_its_controls(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) != 0
    said = capsys.readouterr()
    assert said.err + said.out
    assert_harmless(said.out, said.err)
