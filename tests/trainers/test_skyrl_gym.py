"""Environments that SkyRL-Gym itself has registered, and its functions in verl's form, graded through xp: the real
package, in SkyRL's own Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from xp.contrib.contracts.jobs import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("SKYRL_PYTHON", ROOT / ".venv-skyrl/bin/python"))
PLAY = """
import importlib, json
import skyrl_gym
from tests.graders_under_test.grader_rules import GSM8K
from tests.graders_under_test.graders import skyrl_rows
from tests.support.sections import replace
from xp.envs.base import Task
from xp.spec.env import GraderForm
from xp.envs.graded import GradedProvider
from xp.envs.graders import conversations_of
from xp.episode.episode import Episode

(row,) = skyrl_rows()["train"]

def played(config, texts):
    steps, conversation = [], conversations_of(config, None)(row)
    for text in texts:
        steps.append(conversation.take(text))
        if steps[-1].finished:
            break
    return [[step.reward, step.finished, step.text] for step in steps]

def as_skyrl(env_class, max_turns, texts):
    env = skyrl_gym.make(env_class, env_config={}, extras={**row, "max_turns": max_turns})
    env.init(row["prompt"])
    steps = []
    for text in texts:
        step = env.step(text)
        steps.append([float(step["reward"]), step["done"], "".join(one["content"] for one in step["observations"])])
        if step["done"]:
            break
    return steps

found = {}
for env_class, max_turns, texts in (
    ("gsm8k", 1, ["so #### 18"]),
    ("gsm8k", 1, ["18"]),
    ("gsm8k_multi_turn", 3, ["hm", "#### 17", "#### 17", "#### 18"]),
    ("gsm8k_multi_turn", 4, ["#### 17", "#### 18"]),
    ("gsm8k_multi_turn", 9, ["#### 17", "#### 16"]),
    ("aime", 1, ["Answer: 18"]),
    ("aime", 1, ["18"]),
):
    xps = played(replace(GSM8K, env_class=env_class, max_turns=max_turns), texts)
    found[f"{env_class} {max_turns} {texts}"] = [xps, as_skyrl(env_class, max_turns, texts)]
for name in ("skyrl_gym.envs.gsm8k.utils:compute_score", "skyrl_gym.envs.aime.utils:compute_score"):
    module, _, function = name.partition(":")
    for text in ("so #### 18", "Answer: 18", "18", ""):
        ((xps, _, _),) = played(replace(GSM8K, env_class=None, grader=name, grader_form=GraderForm.VERL), [text])
        own = getattr(importlib.import_module(module), function)(text, "18")
        found[f"{name} {text}"] = [xps, float(own["score"] if isinstance(own, dict) else own)]

provider, task = GradedProvider(replace(GSM8K, env_class="gsm8k_multi_turn", max_turns=3), {}), Task("x", "train", 0)
episode = Episode(task, lambda: provider.open(task), replace(GSM8K, max_turns=3))
for _ in range(3):
    episode.step("#### 17")
outcome = episode.settle()
provider.close()
print(json.dumps([found, [outcome.status, outcome.reward]]))
"""


@pytest.mark.skipif(
    not PYTHON.exists(), reason="SkyRL's Python is not here: make .venv-skyrl/.done or SKYRL_PYTHON"
)
def test_rewards_ends_and_messages_are_those_that_skyrls_generator_gets() -> None:
    done = subprocess.run(
        [PYTHON, "-c", PLAY], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    found, (status, reward) = json.loads(done.stdout)
    assert {name: xps for name, (xps, _) in found.items()} == {
        name: own for name, (_, own) in found.items()
    }
    assert found["gsm8k 1 ['so #### 18']"][0] == [[1.0, True, ""]]
    assert (status, reward) == ("finished", pytest.approx(0.2))
