"""Trainings of programs: the same updates as those of ordinary episodes, and a published program on Harbor's tasks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.harbor_tasks import left_over
from tests.support.programs import mini, needs_mini
from xp.__main__ import main
from xp.lib.digest import file_digest

PROGRAMS = Path(__file__).parents[1] / "programs"
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]
GAME = '''"""A game of two messages; the share of vowels in the last one is its score."""

import json
import os
import sys
import urllib.request
from pathlib import Path

MORE = "Once more."


def score(text):
    return sum(letter in "aeiou" for letter in text.strip()) / max(len(text.strip()), 1)


class Game:
    def __init__(self, env_config, extras):
        self.number = 0

    def step(self, text):
        self.number += 1
        messages = [{"role": "user", "content": MORE}]
        return {"observations": messages, "reward": score(text) if self.number > 1 else None, "done": self.number > 1}


def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]


if __name__ == "__main__":
    if sys.argv[1] == "score":
        logs = Path(os.environ["XP_ROOT"], "logs/verifier/reward.txt")
        logs.write_text(repr(score(Path(sys.argv[2]).read_text())))
    else:
        messages = [{"role": "user", "content": Path(sys.argv[1]).read_text()}]
        messages += [ask(messages), {"role": "user", "content": MORE}]
        ask(messages)
'''
FEW = ("training.num_steps=2", "training.prompts_per_step=2", "training.group_size=2", "training.micro_batch_size=4")
SMALL = (*FEW, "training.max_response_tokens=60", "training.max_tokens_per_turn=20", "evaluation.batch_size=8")


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def trained(outputs: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The lines of metrics of a training, and the digest of its weights."""
    assert main([*words, f"outputs={outputs}", "model=tiny", *SMALL]) == 0
    (run,) = (outputs / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == "train"], file_digest(run / "model/model.safetensors")


def rows(place: Path) -> tuple[str, str]:
    """Overrides with tasks of two splits."""
    prompts = [(split, number) for split in ("train", "test") for number in range(4)]
    tasks = [{"prompt": f"Write the word number {number} of {split}.", "split": split} for split, number in prompts]
    (place / "game.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    return f"env.rows={place / 'game.jsonl'}", "env.held_out.split=test"


def test_a_program_that_appends_has_the_same_updates_as_ordinary_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("game.py").write_text(GAME)
    both = (*rows(tmp_path), "env.max_turns=2")
    expected, weights = trained(tmp_path / "one", "env=graded", "env.grader=game:Game", *both)
    found, others = trained(
        tmp_path / "two",
        *("env=harness", "env.sandbox=none", *both),
        "env.options.command=python game.py {prompt_file}",
        "env.options.grade=python {program}/game.py score {answer_file}",
    )
    assert len({line["reward/avg_raw_reward"] for line in expected}) == 2
    numbers = ("reward/avg_raw_reward", "training/loss", "training/grad_norm", "training/tokens")
    assert [[line[name] for name in numbers] for line in found] == [
        [line[name] for name in numbers] for line in expected
    ]
    assert others == weights


def test_a_program_that_rewrites_its_history_is_trained_in_several_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines, _ = trained(
        tmp_path / "outputs",
        *("env=harness", "env.sandbox=none", *rows(tmp_path)),
        f"env.options.command=python {PROGRAMS}/rewriting_agent.py {{prompt_file}} chat",
        *("env.options.grade=test -s {answer_file}", "env.options.max_rows=8", "training.entropy_coef=0.01"),
    )
    assert [(line["episodes/num"], line.get("episodes/void", 0.0)) for line in lines] == [(4.0, 0.0)] * 2
    assert all(line["grader/program_rows"] > 1.0 for line in lines)
    assert all(line["grader/program_failed"] == 0.0 for line in lines)
    assert all(0 < line["training/logprob_gap"] < 1e-4 for line in lines)


@needs_mini
def test_a_published_program_trains_two_steps_on_harbors_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "sandboxes"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    lines, _ = trained(tmp_path / "outputs", *mini(tmp_path), "training.entropy_coef=0.01")
    assert [line["episodes/num"] for line in lines] == [4.0, 4.0]
    assert all(line.get("episodes/void", 0.0) == 0.0 for line in lines)
    assert all(line["grader/program_requests"] >= 1.0 for line in lines)
    assert not [name for name in left_over(place) if "xp-" in name or "process" in name]
