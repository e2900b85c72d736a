"""Sessions in containers. A stub for `docker` runs a container's commands here, and notes its arguments."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tests.support.fake_session import call
from tests.support.harbor_tasks import CONFIG, harbor, write_task
from tests.support.harness_programs import OPTIONS, harness
from tests.support.sections import replace
from xp.contrib.contracts.jobs import eventually
from xp.envs.base import Task
from xp.envs.config import load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.spec.env import SandboxKind

pytestmark = pytest.mark.integration
STAND_IN = """#!{python}
import os, shutil, subprocess, sys
root, words = {root!r}, sys.argv[1:]
open(root + "/calls", "a").write(" ".join(words) + "\\n")
if words[0] == "build" and os.path.exists(root + "/broken"):
    sys.exit("failed to solve: no such image")
if words[0] == "run":
    print("abc")
if words[0] == "inspect":
    print("true")
if words[0] == "network":
    print("127.0.0.1")
if words[0] == "exec":
    rest = words[1:]
    while rest[0].startswith("--"):
        rest = rest[1 if rest[0] == "--interactive" else 2:]
    passed, at = {{"PATH": os.environ["PATH"], "XP_ROOT": root}}, rest[1:]
    for place in ("tests", "logs", "program", "prompt", "grading"):
        at = [(" " + word).replace(" /" + place, " " + root + "/" + place)[1:] for word in at]
    sys.exit(subprocess.run(at, env=passed, cwd=root + "/app").returncode)
if words[0] == "cp":
    shutil.copytree(words[-2], root + words[-1].partition(":")[2], dirs_exist_ok=True)
"""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that stands for a container."""
    root = tmp_path / "container"
    (root / "app").mkdir(parents=True)
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(STAND_IN.format(python=sys.executable, root=str(root)))
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("OF_THE_USER", "not for a container")
    return root


def play(folder: Path, *commands: str, **changes: object) -> tuple[EpisodeResult, list[str]]:
    config = harbor(folder, sandbox=SandboxKind.DOCKER, retries_per_episode=0, **changes)
    provider = load_provider(config, os.environ)
    task = Task("x", "train", 0)
    episode = Episode(task, lambda: provider.open(task), config)
    read = [
        message["content"]
        for command in commands
        for message in episode.step(call("bash", command=command)).messages
    ]
    episode.step("Done.")
    return episode.settle(), read


def test_an_image_is_built_a_container_used_and_removed(tmp_path: Path, container: Path) -> None:
    config = CONFIG + 'network_mode = "no-network"\n[environment.env]\nLEVEL = "easy"\n'
    write_task(tmp_path / "tasks/a", config=config)
    outcome, read = play(tmp_path / "tasks", "echo hello > hello.txt", "echo $LEVEL; env")
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    assert read[1].startswith("easy\n")
    assert "not for a container" not in read[1]
    eventually(lambda: "rm --force abc\n" in (container / "calls").read_text())
    lines = (container / "calls").read_text().splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["version", "build", "run", "exec"]
    assert "--pids-limit 512 --memory 2048m --cpus 1 --network none xp-harbor:" in lines[2]
    assert "easy" not in lines[3]
    assert lines[-1] == "rm --force abc"


def test_variables_of_a_task_change_no_program_of_this_machine(
    tmp_path: Path, container: Path
) -> None:
    foreign = tmp_path / "foreign/docker"
    foreign.parent.mkdir()
    foreign.write_text(f"#!/bin/sh\n/bin/touch {tmp_path}/ran\n")
    foreign.chmod(0o755)
    text = "one\ntwo $HOME `id`'"
    variables = f'PATH = "{foreign.parent}:{os.environ["PATH"]}"\nDOCKER_HOST = "tcp://elsewhere"\nTEXT = """{text}"""\n'
    write_task(tmp_path / "tasks/a", config=f"{CONFIG}[environment.env]\n{variables}")
    _, read = play(tmp_path / "tasks", 'echo "$DOCKER_HOST $TEXT"; command -v docker; cat')
    assert read == [f"tcp://elsewhere {text}\n{foreign}\n"]
    assert not (tmp_path / "ran").exists()
    assert "tcp://elsewhere" not in (container / "calls").read_text()


def test_a_program_plays_in_a_container_of_an_image_with_it(
    tmp_path: Path, container: Path
) -> None:
    write_task(tmp_path / "tasks/a")
    options = OPTIONS | {
        "command": "python {program}/shell_agent.py {prompt_file}",
        "setup": "pip install mine",
    }
    config = replace(harness(tmp_path / "tasks", options=options), sandbox=SandboxKind.DOCKER)
    provider = load_provider(config, os.environ)
    task = Task("x", "train", 0)
    episode = Episode(task, lambda: provider.open(task), config)
    episode.step(call("bash", command="echo hello > hello.txt"))
    episode.step("Done.")
    outcome = episode.settle()
    provider.close()
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    eventually(lambda: "rm --force abc\n" in (container / "calls").read_text())
    lines = (container / "calls").read_text().splitlines()
    built = [line.split()[3] for line in lines if line.startswith("build ")]
    assert [name.partition(":")[0] for name in built] == ["xp-harbor", "xp-harness"]
    assert any(line.startswith("run ") and built[1] in line for line in lines)
    assert not re.search("xp-[0-9a-f]{64}", "".join(lines))
