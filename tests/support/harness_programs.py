"""Rules of episodes of `env=harness` with the programs of tests/programs, and a place for their sandboxes."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harbor_tasks import CLOUD, left_over
from tests.support.ors_server import rules
from xp.contrib.contracts.jobs import eventually
from xp.envs.base import Provider, Task
from xp.envs.config import EnvConfig, load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult
from xp.spec.env import PromptSource, SandboxKind, ToolCallsPerTurn

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/programs"
SHELL = "python {program}/shell_agent.py {prompt_file}"
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("agent", "setup", "image", "grade", "grader")),
    "command": SHELL,
    "program": str(PROGRAMS),
    "env": {},
    "timeout_s": 300.0,
    "reward": "reward",
    "max_rows": 1,
    "agent_options": {},
    "endpoint": None,
    "listen": "127.0.0.1:8800",
    "cloud": CLOUD,
    "train_auxiliary": True,
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory of the test's sandboxes; after it, no directory, process or thread of one is there."""
    place = tmp_path / "sandboxes"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    # A server that other tests of this process share has such a thread too.
    before = set(threading.enumerate())
    yield place
    eventually(lambda: not left_over(place))
    eventually(
        lambda: (
            not [
                thread
                for thread in set(threading.enumerate()) - before
                if thread.name in ("program", "child-end")
            ]
        )
    )


def harness(target: Path | None, **changes: Any) -> EnvConfig:
    """Rules of a program's episodes, as conf/env/harness.yaml has them."""
    options = OPTIONS | changes.pop("options", {})
    how: dict[str, Any] = {
        "prompt": PromptSource.LIVE,
        "tool_calls_per_turn": ToolCallsPerTurn.ALL,
        **changes,
    }
    place = None if target is None else str(target)
    return rules(provider="harness", target=place, sandbox=SandboxKind.NONE, options=options, **how)


def play(
    config: EnvConfig, *turns: str | tuple[str, bool], split: str = "train"
) -> tuple[EpisodeResult, Episode]:
    """An episode on the first task; a turn of a tuple says whether a token limit cut it."""
    provider = load_provider(config, os.environ)
    played = play_on(provider, config, *turns, split=split)
    provider.close()
    return played


def play_on(
    provider: Provider, config: EnvConfig, *turns: str | tuple[str, bool], split: str = "train"
) -> tuple[EpisodeResult, Episode]:
    """See `play`; the provider stays open."""
    task = Task("x", split, 0)
    episode = Episode(task, lambda: provider.open(task), config)
    for turn in turns:
        text, is_cut = (turn, False) if isinstance(turn, str) else turn
        episode.step(text, is_cut=is_cut)
    return episode.settle(), episode
