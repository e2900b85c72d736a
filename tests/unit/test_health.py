"""The health of a run's environments: by cause, with what their servers reported, the same in every place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.report_run import ENV, episode, make_run, write_episodes
from xp.cli.display import environment_lines
from xp.cli.runs import show_diagnosis
from xp.execution.health import EpisodeCount
from xp.results.report.data import RunPage

CODE = "/home/me/outputs/runs/a/attempt_1/code/"
HERE = "my_env.py"
EVENTS = (
    {"event": "served", "places": {"accuse": f"{CODE}{HERE}:7", "look": f"{CODE}{HERE}:3"}},
    {
        "event": "raised",
        "call": "accuse",
        "text": f'File "{CODE}{HERE}", line 9, in accuse\nKeyError: 1',
    },
    {
        "event": "late",
        "call": "look",
        "text": f'File "{HERE}", line 5, in look\nno answer after 9.0 s',
    },
    {"event": "restarted", "text": "has ended"},
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = make_run(tmp_path, "a")
    write_episodes(
        made / "attempt_1/train/trajectories/more.jsonl", [episode("train", 3, 9, 0, None)]
    )
    lines = "".join(json.dumps({"text": "", **one, "env": ENV}) + "\n" for one in EVENTS)
    (made / "attempt_1/train/environment.jsonl").write_text(lines + '{"torn')
    return made


def test_causes_have_the_servers_traceback_and_slow_calls_their_place(run: Path) -> None:
    lines = EpisodeCount.of(run).health.lines(run)
    assert "1 of " in lines[0]
    assert lines[0].endswith("0 more repeated on a fresh session, 1 restart of servers")
    assert lines[1:] == [
        f"{ENV} accuse: ResponseLost: the server was gone (1 void, 0 retried)",
        f'  File "{HERE}", line 9, in accuse',
        "  KeyError: 1",
        f"{ENV} look: was slow",
        f'  File "{HERE}", line 5, in look',
        "  no answer after 9.0 s",
        f"{ENV}: server restarted 1 time: it has ended",
        f"slowest calls: {ENV} opening 0.5 s, {ENV} accuse 0.25 s ({HERE}:7)",
    ]


def test_a_void_episode_is_not_one_that_a_fresh_session_saved(tmp_path: Path) -> None:
    void = episode("train", 3, 9, 0, None)
    reason = void.outcome.void_reason
    faults = (("", "the server was late"), ("accuse", reason))
    void = replace(void, outcome=replace(void.outcome, faults=faults))
    run = make_run(tmp_path, "a")
    write_episodes(run / "attempt_1/train/trajectories/more.jsonl", [void])
    first, *causes = EpisodeCount.of(run).health.lines(run)
    assert "0 more repeated on a fresh session" in first
    assert any("the server was late (0 void, 1 retried)" in line for line in causes)


def test_summary_diagnosis_and_page_have_the_same_lines(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = EpisodeCount.of(run).health.lines(run)
    assert [line[14:] for line in environment_lines(run)] == lines
    assert environment_lines(run)[0].startswith("environment   ")
    show_diagnosis(run, as_json=False)
    told = capsys.readouterr().out
    assert all(line in told for line in lines)
    page = RunPage(run)
    page.refresh()
    assert page.data()["verdict"]["environment"] == lines
