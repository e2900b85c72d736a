"""Episodes on Harbor's task folders without a container: scores, void episodes, and what may not leave the sandbox."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.child import Fork
from tests.support.fake_session import call
from tests.support.harbor_tasks import CONFIG, HELLO, REWARD, harbor, left_over, write_task
from tests.support.launching import ROOT
from xp.contrib.contracts.jobs import DEADLINE_S, eventually
from xp.contrib.contracts.provider import ProviderSuite, lent
from xp.contrib.harbor import session
from xp.contrib.harbor.local_sandbox import LocalSandbox
from xp.envs.base import Provider, Task
from xp.envs.config import load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory of the test's sandboxes; after it, no directory and no process of one is there."""
    place = tmp_path / "sandboxes"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert not left_over(place)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_task(folder / "a", start="given\n")
    write_task(folder / "b")
    return folder


class TestHarbor(ProviderSuite):
    """The contract of every provider."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, tasks: Path) -> Iterator[Provider]:
        yield from lent(load_provider(harbor(tasks), os.environ))

    @pytest.fixture
    def closed(self, tasks: Path) -> Provider:
        return load_provider(harbor(tasks), os.environ)


def play(folder: Path, *texts: str, **changes: object) -> tuple[EpisodeResult, list[str]]:
    """The outcome of an episode on the first task, and what the model read."""
    config = harbor(folder, **changes)
    provider = load_provider(config, os.environ)
    task = Task("x", "train", 0)
    episode = Episode(task, lambda: provider.open(task), config)
    read = [message["content"] for text in texts for message in episode.step(text).messages]
    outcome = episode.settle()
    provider.close()
    return outcome, read


def bash(command: str) -> str:
    return call("bash", command=command)


def test_a_solved_task_has_the_verifiers_reward_and_files_of_its_environment(tasks: Path) -> None:
    outcome, read = play(
        tasks, bash("cat start; ls; exit 3"), bash("echo hello > hello.txt"), "It is done."
    )
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    assert read == ["given\nstart\n\n[exit code 3]", ""]


def test_where_turns_run_out_the_state_is_scored(tasks: Path) -> None:
    outcome, _ = play(tasks, bash("echo hello > hello.txt"), bash("true"), max_turns=2)
    assert outcome.status == EpisodeStatus.TRUNCATED
    assert outcome.reward == 1.0
    assert outcome.step_rewards == (1.0,)


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (
            "#!/bin/bash\necho $XP_ROOT; echo no python here\nexit 1\n",
            "wrote no /logs/verifier/reward.txt",
        ),
        (f"#!/bin/bash\necho nan > {REWARD}\n", "reward.txt is nan"),
        (f"#!/bin/bash\nln -s /etc/hostname {REWARD}\n", "is a link"),
        (
            '#!/bin/bash\necho \'{"a": 1, "b": 2}\' > "$XP_ROOT/logs/verifier/reward.json"\n',
            "set env.options.reward",
        ),
    ],
    ids=["none", "nan", "link", "several"],
)
def test_a_verifier_that_fails_makes_the_episode_void(tmp_path: Path, test: str, said: str) -> None:
    write_task(tmp_path / "tasks/a", test=test)
    outcome, _ = play(
        tmp_path / "tasks", bash("echo hello > hello.txt"), "Done.", retries_per_episode=0
    )
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert said in str(outcome.void_reason)


def test_a_verifier_that_hangs_makes_the_episode_void(tmp_path: Path) -> None:
    write_task(
        tmp_path / "tasks/a",
        test=HELLO + "sleep 600\n",
        config=CONFIG.replace("timeout_sec = 250.0", "timeout_sec = 1"),
    )
    outcome, _ = play(tmp_path / "tasks", "Done.", retries_per_episode=0)
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert "DeadlineExceeded" in str(outcome.void_reason)


def test_a_reward_of_several_is_chosen_by_name_and_json_wins(tmp_path: Path) -> None:
    line = 'echo \'{"a": 1, "b": 0.25}\' > "$XP_ROOT/logs/verifier/reward.json"\n'
    write_task(tmp_path / "tasks/a", test=HELLO + line)
    outcome, _ = play(tmp_path / "tasks", "Done.", options={"reward": "b"})
    assert outcome.reward == 0.25


def test_a_command_gets_no_variable_of_xps_and_its_output_is_bounded(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", "of-the-user")
    monkeypatch.setenv("WANDB_PROJECT", "of-the-user")
    outcome, read = play(tasks, bash("env; cat /proc/$PPID/environ"), bash("seq 100000"), "Done.")
    assert outcome.reward == 0.0
    assert "of-the-user" not in read[0]
    assert "bytes left out" in read[1]
    assert len(read[1]) < 1200


def test_a_hanging_command_is_killed_with_its_children(tasks: Path) -> None:
    # A busy machine may need a second for another command too.
    others = [bash("echo hello > hello.txt")] * 20
    changes = {"options": {"command_timeout_s": 1.0}, "max_turns": 22}
    outcome, read = play(
        tasks,
        bash("sleep 601 & sleep 602"),
        *others,
        "Done.",
        **changes,
    )
    assert outcome.reward == 1.0
    assert read[0] == "[killed: it took longer than 1 s]"


def test_the_models_time_is_the_tasks_and_then_the_state_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command takes all of the time but a second by this clock; on a busy machine it may really take long."""
    clock = iter((0.0, 999.0, 999.0, 1000.0))
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    write_task(tmp_path / "tasks/a")
    commands = (bash("echo hello > hello.txt"), bash("sleep 600"), bash("rm hello.txt"))
    outcome, read = play(tmp_path / "tasks", *commands)
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    assert read[:2] == ["", "[killed: it took longer than 1 s]"]


def test_links_that_a_model_leaves_are_removed_and_not_followed(
    tasks: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    kept = outside / "verifier/mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    (outside / "verifier/reward.txt").write_text("1")
    command = f"cd $XP_ROOT; rm -rf logs tests; ln -s {outside} logs; ln -s {outside} tests; ln -s {outside} app/x"
    outcome, _ = play(tasks, bash(f"{command}; mkdir -m 0 app/closed"), "Done.")
    assert outcome.reward == 0.0
    assert kept.read_text() == "mine"
    assert sorted(path.name for path in outside.rglob("*")) == [
        "mine.txt",
        "reward.txt",
        "verifier",
    ]


def test_an_episode_that_kills_its_process_is_void(tasks: Path) -> None:
    outcome, _ = play(tasks, bash("kill -9 $PPID"), retries_per_episode=0)
    assert outcome.status is EpisodeStatus.VOID


def runs_for_ever() -> None:
    box = LocalSandbox(None, None, os.environ)
    box.run("setsid sleep 604 & echo", {}, 5.0, 100)
    print(box.root, flush=True)
    box.run("sleep 605", {}, 600.0, 100)


def test_a_process_that_is_ended_leaves_no_process_and_no_directory(place: Path) -> None:
    program = Fork(runs_for_ever, ROOT)
    root = Path(program.out.readline().strip())
    assert root.parent == place
    assert root.is_dir()
    program.send(signal.SIGKILL)
    program.process.join(DEADLINE_S)
    eventually(lambda: not left_over(place))
