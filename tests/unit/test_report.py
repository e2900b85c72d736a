"""The data behind a report: which episodes are found and chosen, what is said of a spec, of one run and of several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.report_run import data_of, episode, make_evaluation, make_run, write_episodes
from xp.__main__ import main
from xp.composition import compose
from xp.errors import ExitCode
from xp.execution.named import named_runs
from xp.results.report.data import report
from xp.results.report.episode_detail import detail
from xp.results.report.episodes import EpisodeIndex
from xp.results.report.recipe import differences
from xp.results.report.selection import Extent, chosen
from xp.results.report.web import as_json, page_text


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs whose seeds differ, and one with another learning rate, which learned less."""
    root = tmp_path_factory.mktemp("outputs")
    make_run(root, "run-one")
    make_run(root, "run-two", seed=2)
    make_run(root, "slow", gain=0.1, training__learning_rate=1e-5)
    return root


def index_of(run: Path) -> EpisodeIndex:
    found = EpisodeIndex(run)
    found.refresh()
    return found


def test_an_index_takes_additions_and_waits_for_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "attempt_1/train/trajectories/train.jsonl"
    write_episodes(file, [episode("train", 0, 0, 0, 1.0)])
    index = index_of(tmp_path)
    whole = episode("train", 1, 7, 0, 0.5).to_line()
    with file.open("ab") as end:
        end.write(whole[:50])
    index.refresh()
    assert [row.task_index for row in index.entries] == [0]
    with file.open("ab") as end:
        end.write(whole[50:] + b'{"torn": \n' + b'{"schema_version": 99}\n')
    index.refresh()
    assert [(row.step, row.task_index) for row in index.entries] == [(1, 0), (2, 7)]
    assert index.record(1)["index"] == 7
    assert index.num_unreadable == 2


@pytest.mark.parametrize(
    ("words", "base", "differing"),
    [
        ("seed=2", "env=whodunit_mini model=tiny", {"seed"}),
        ("env=verifiers env.target=x", "env=verifiers", {"env.members.x.target"}),
        ("env=whodunit+ctf", "env=whodunit+ctf", set()),
        ("recipes=whodunit-skyrl", "the recipe whodunit-skyrl", set()),
    ],
)
def test_a_spec_is_compared_with_the_defaults_of_its_own_options(
    words: str, base: str, differing: set[str]
) -> None:
    name, changed = differences(compose(words.split()).model_dump(mode="json"))
    assert base in name
    assert {key for key, _, _ in changed} == differing


def test_best_median_worst_groups_and_all_void_are_chosen(tmp_path: Path) -> None:
    rewards = (0.1, 0.2, 0.5, 0.8, 0.9, None, None)
    episodes = [
        episode("train", 0, index, sample, reward)
        for index, reward in enumerate(rewards)
        for sample in (0, 1)
    ]
    write_episodes(tmp_path / "attempt_1/train/trajectories/train.jsonl", episodes)
    rows = index_of(tmp_path).entries
    ((group, numbers),) = chosen(rows, Extent.CHOSEN).items()
    assert group == (1, "train", 1)
    assert [rows[number].task_index for number in numbers] == sorted([0, 2, 4, 5, 6] * 2)
    assert chosen(rows, Extent.ALL) == {group: list(range(14))}
    assert chosen(rows, Extent.NONE) == {}


def test_foreign_text_is_written_out_and_cut_in_the_middle() -> None:
    assert page_text("a\x1b[31m\u202eb\n\t") == "a\\u001b[31m\\u202eb\n\t"
    cut = page_text("x" * 100 + "end", 40)
    assert "... 63 characters left out ..." in cut
    assert cut.endswith("xend")
    assert json.loads(as_json({"a": "</script><!--&"})) == {"a": "</script><!--&"}
    assert "<" not in as_json({"a": "</script>"})


def test_an_episode_of_several_rows_has_a_tree_of_its_turns() -> None:
    record = json.loads(episode("eval", 0, 0, 0, 1.0).to_line())
    messages = [{"role": "user", "content": "Go."}]
    for turn in range(5):
        messages.append({"role": "assistant", "content": f"{turn}."})
        messages.append({"role": "user", "content": "So?"})
    results: list[dict[str, Any]] = [
        {"turn": at, "result": {"reward": None, "text": "", "follows": follows}}
        for at, follows in enumerate((None, -1, 0, 2))
    ]
    results.append(
        {
            "turn": 4,
            "result": {
                "reward": 1.0,
                "text": "",
                "undelivered": [4],
            },
        }
    )
    outcome = {**record["outcome"], "num_turns": 5}
    page = detail({**record, "messages": messages, "tool_calls": results, "outcome": outcome})
    rows = [(row["follows"], row["turns"]) for row in page["rows"]]
    assert rows == [
        (-1, [0, 1]),
        (-1, [2, 4]),
        (0, [3]),
    ]
    turns = [message for message in page["messages"] if "row" in message]
    assert [turn["row"] for turn in turns] == [0, 0, 1, 2, 1]
    assert [turn["turn"] for turn in turns if turn["is_untrained"]] == [4]


def test_the_terminal_shows_an_episode_by_step_and_rank(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "episode", "run-one", "--step", "3", "--worst", f"outputs={outputs}"]) == 0
    said = capsys.readouterr().out
    assert "whodunit_mini/train/0  train step 3 sample 2" in said
    assert "I accuse number 0 in train step 2, sample 2." in said
    assert "call accuse: reward 0, episode over" in said
    assert main(["runs", "episode", "run-one", "--step", "9", f"outputs={outputs}"]) == 2
    assert "train has the steps 1 to 4" in capsys.readouterr().err


def test_an_evaluation_has_a_page_and_episodes_like_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_evaluation(tmp_path, "whodunit_mini-mine-abc")
    assert main(["runs", "episode", "whodunit", "--index", "2", f"outputs={tmp_path}"]) == 0
    assert "I accuse number 2 in eval step 0, sample 0." in capsys.readouterr().out
    assert main(["report", "whodunit", f"outputs={tmp_path}"]) == 0
    (page,) = data_of(place / "report.html")["runs"]
    assert (page["title"], page["status"]) == ("whodunit_mini · mine", "stopped")
    assert page["episodes"]["columns"]["reward"] == [1.0] * 4
    assert main(["runs", "show", "whodunit", f"outputs={tmp_path}"]) == ExitCode.RUN_DIR
    assert "no such run: whodunit; see python -m xp runs list" in capsys.readouterr().err
    make_run(tmp_path, "whodunit-run")
    assert main(["report", "whodunit", f"outputs={tmp_path}"]) == ExitCode.RUN_DIR
    text = capsys.readouterr().err
    assert "whodunit is the beginning of 2 names: " in text
    assert all(name in text for name in ("whodunit_mini-mine-abc", "whodunit-run"))
    assert main(["report", "whodunit-run", "whodunit_mini-mine-abc", f"outputs={tmp_path}"]) == 0


def test_an_evaluation_without_tokens_is_not_called_a_run_of_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_evaluation(tmp_path, "mine")
    assert main(["report", "mine", f"outputs={tmp_path}", "--tokens"]) == ExitCode.RUN_DIR
    assert "mine is an evaluation, so its tokenizer is not loaded" in capsys.readouterr().err


def test_several_runs_are_compared_by_what_differs_and_task_by_task(outputs: Path) -> None:
    _, data, _ = report(named_runs(outputs, ["run-*", "slow"]))
    found = data["comparison"]
    assert found["keys"] == ["seed", "training.learning_rate"]
    assert [row[0] for row in found["values"]] == ["1", "2", "1"]
    assert found["groups"] == [[0, 1], [2]]
    assert [pair["second"] for pair in found["pairs"]] == ["run-two", "slow"]
    assert found["pairs"][1]["difference"] == pytest.approx(-0.4)
