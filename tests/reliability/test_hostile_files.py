"""One file of a foreign run, evaluation or task set that hangs, overflows or is huge costs one row, never a command."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planted.recorded import unpack
from tests.support.report_run import ENV, episode, make_evaluation, write_episodes
from xp.__main__ import main
from xp.errors import ExitCode

SECONDS = 250
"""Longer than any command takes on a busy machine; what hangs would hang for ever."""
METRICS = "runs/bad/metrics.jsonl"
LOG = "runs/bad/attempt_1/train/log.txt"
EVALUATION = "runs/bad/attempt_1/evaluate/after/eval.json"
EPISODES = "runs/bad/attempt_1/train/trajectories/train.jsonl"
SUMMARY = "evaluations/bad/eval.json"
MANIFEST = f"tasks/{'bad0' * 5}/manifest.json"
SPECIAL = {
    "fifo": lambda file: os.mkfifo(file),
    "zero": lambda file: file.symlink_to("/dev/zero"),
    "root": lambda file: file.symlink_to("/"),
}
COMMANDS = (
    ("runs", "list"), ("runs", "compare"), ("runs", "show", "bad"),
    ("runs", "diagnose", "bad"), ("report", "bad"), ("runs", "compare", "good", "bad"), ("eval", "list"),
    ("eval", "list", "--markdown"), ("tasks", "list"), ("tasks", "verify"),
)  # fmt: skip
TYPED = {int(code) for code in ExitCode} - {ExitCode.INTERNAL}
LISTINGS = (("runs", "list"), ("runs", "compare"), ("eval", "list"), ("tasks", "list"))


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A good run, one that is about to be bad, an evaluation and a task set."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    place = tmp_path / "outputs"
    for name in ("good", "bad"):
        unpack("good_short", place / "runs" / name)
        file = place / "runs" / name / "run.json"
        own = json.loads(file.read_text())["run_id"]
        file.write_text(file.read_text().replace(own, name))
    for file in (MANIFEST, LOG):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
    make_evaluation(place, "bad", 0.5)

    def late(*_: object) -> None:
        raise AssertionError(f"it takes more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    yield place
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run_all(
    outputs: Path, capsys: pytest.CaptureFixture[str], commands: tuple[tuple[str, ...], ...]
) -> dict[str, str]:
    """Output of each command; one that raises, hangs or ends with an untyped code fails the test."""
    told = {}
    for words in commands:
        place = [f"outputs={outputs}"]
        signal.alarm(SECONDS)
        try:
            code = main([*words, *place])
        except BaseException as error:
            raise AssertionError(" ".join(words)) from error
        finally:
            signal.alarm(0)
        seen = capsys.readouterr()
        told[" ".join(words)] = seen.out + seen.err
        assert code in TYPED, words
        if words in LISTINGS:
            assert code == 0, (words, seen.err)
        if words in (("runs", "list"), ("runs", "compare")):
            assert "good" in seen.out, words
    return told


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "fifo") for name in (METRICS, LOG, EPISODES, SUMMARY, MANIFEST)),
        *((EVALUATION, "zero"), (METRICS, "root")),
    ],
)
def test_a_file_that_is_no_plain_file_is_refused(
    outputs: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (outputs / name).unlink(missing_ok=True)
    SPECIAL[kind](outputs / name)
    told = run_all(outputs, capsys, COMMANDS)
    assert name in told["runs list"] or name not in (METRICS, EVALUATION)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((["summary", "reward", "value"], value) for value in ("1" + "0" * 400, '"x"')),
        (["summary", "passes"], "1e999"),
        (["tasks", "whodunit_mini/test/769", "rewards"], "NaN"),
        (["held_out", "x", "num_trained_on"], '"x"'),
        (["scoring"], "null"),
        ([], "null"),
    ],
)
def test_a_value_of_an_evaluation_that_is_none_is_refused(
    outputs: Path, path: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(outputs / EVALUATION, path, value)
    commands = (
        *COMMANDS[:1],
        *COMMANDS[3:4],
        *COMMANDS[5:8],
        ("runs", "compare", "--paired", "bad"),
    )
    assert len(run_all(outputs, capsys, commands)) == len(commands)


@pytest.mark.parametrize(
    "path",
    [
        *([], ["model"], ["summary"], ["usage"], ["num_played"]),
        *(
            ["summary", "reward", "value"],
            ["environments", ENV],
            ["tasks", f"{ENV}/test/1", "rewards"],
        ),
    ],
)
def test_a_summary_of_another_shape_is_one_line_of_the_list(
    outputs: Path, path: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    leave(outputs / SUMMARY, path, '"x"')
    commands = (
        *(("runs", "list"), ("eval", "list"), ("eval", "list", "--markdown")),
        *(("runs", "show", "good"), ("runs", "compare", "--paired", "good", "bad")),
    )
    told = run_all(outputs, capsys, commands)
    assert "bad" in told["eval list"]


def leave(file: Path, path: list[str], value: str) -> None:
    """Replace the value at a path of a JSON file."""
    whole = json.loads(file.read_text())
    at = whole
    for key in path[:-1]:
        at = at.setdefault(key, {})
    if path:
        at[path[-1]] = "@@"
    file.write_text(json.dumps(whole if path else "@@").replace('"@@"', value))


PRIVATE = "the private prompt"
READING = (
    ("runs", "list"), ("runs", "show", "bad"), ("runs", "logs", "bad"), ("runs", "episode", "bad"), ("report", "bad"),
    ("runs", "diagnose", "bad"), ("runs", "compare"), ("runs", "compare", "--paired", "good", "bad"),
)  # fmt: skip


def leave_private(outputs: Path) -> None:
    """Private words in the episodes and the log of the run `bad`."""
    (outputs / EPISODES).unlink()
    write_episodes(outputs / EPISODES, [episode("train", 0, 1, 0, 0.5, said=PRIVATE)])
    (outputs / LOG).write_text(PRIVATE)


@pytest.mark.parametrize(
    "name",
    [
        *("run.json", "metrics.jsonl", "attempt_1", "attempt_1/train/trajectories"),
        *("attempt_1/train/log.txt", "attempt_1/evaluate/after/eval.json"),
    ],
)
def test_a_link_to_another_run_is_not_read(
    outputs: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_private(outputs)
    private = outputs / "runs/secret"
    link = outputs / "runs/bad" / name
    shutil.copytree(outputs / "runs/bad", private)
    for file in (EPISODES, LOG):
        (outputs / file).write_text("")
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    link.symlink_to(private / name)
    told = "".join(run_all(outputs, capsys, READING).values())
    assert "leads out of" in told
    assert PRIVATE not in told + "".join(page.read_text() for page in outputs.rglob("report.html"))
