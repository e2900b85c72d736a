"""Harbor's task folders: what is read of them, and what is refused before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.harbor_tasks import CONFIG, HELLO, harbor, write_task
from xp.checks.doctor.finding import Verdict
from xp.checks.doctor.reach import environments
from xp.composition import compose
from xp.contrib.harbor.provider import resolved
from xp.envs.config import load_provider
from xp.errors import ExitCode, XpError
from xp.planning.episode import episode_config
from xp.planning.plan import build_plan
from xp.planning.refusals import sandbox_lines
from xp.spec.env import SandboxKind
from xp.tasks.request import source_digest


def test_every_folder_with_a_task_toml_is_a_task(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_task(tmp_path / name)
    (tmp_path / "notes").mkdir()
    provider = load_provider(harbor(tmp_path), os.environ)
    assert provider.splits() == ("train",)
    assert [task.spec["name"] for task in provider.tasks("train", [0, 1])] == ["a", "b"]
    assert (
        provider.tasks("train", [0])[0].spec["instruction"]
        == "Write the word hello to the file hello.txt."
    )


def test_folders_train_and_test_are_splits(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "test/c"):
        write_task(tmp_path / name)
    provider = load_provider(harbor(tmp_path), os.environ)
    assert [provider.num_tasks(split) for split in ("train", "test")] == [2, 1]
    write_task(tmp_path / "d")
    with pytest.raises(XpError, match="move d into one"):
        load_provider(harbor(tmp_path), os.environ)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("gpus = 1\n", "gpus"),
        ("network_mode = 'allowlist'\n", "network_mode"),
        ("docker_image = '--privileged'\n", "no name of an image"),
        ("cpus = \n", "Invalid value"),
    ],
)
def test_what_xp_cannot_run_is_refused_with_the_name_of_the_task(
    tmp_path: Path, section: str, said: str
) -> None:
    write_task(tmp_path / "good")
    write_task(tmp_path / "odd", config=CONFIG.replace("cpus = 1\n", "") + section)
    with pytest.raises(XpError, match=f"task odd: .*{said}"):
        load_provider(harbor(tmp_path), os.environ)


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        ".",
    ],
)
def test_a_link_out_of_the_task_or_in_a_circle_is_refused(tmp_path: Path, target: str) -> None:
    task = write_task(tmp_path / "a")
    write_task(tmp_path / "b")
    (task / "environment/link").symlink_to(target)
    with pytest.raises(XpError, match=r"task a: .*(leads out of the task|in a circle|nowhere)"):
        load_provider(harbor(tmp_path), os.environ)


def test_a_task_without_a_test_is_named_and_not_left_out(tmp_path: Path) -> None:
    (write_task(tmp_path / "a") / "tests/test.sh").unlink()
    write_task(tmp_path / "b")
    with pytest.raises(XpError, match=r"task a: there is no tests/test.sh"):
        load_provider(harbor(tmp_path), os.environ)


def test_without_a_container_a_test_writing_to_root_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "a", test=HELLO.replace("${XP_ROOT}", ""))
    with pytest.raises(XpError, match=r"task a: .*XP_ROOT"):
        load_provider(harbor(tmp_path), os.environ)


def test_a_declared_secret_goes_only_to_the_task_that_names_it(tmp_path: Path) -> None:
    write_task(tmp_path / "a", config=CONFIG + "[environment.env]\nKEY = '${JUDGE_KEY}'\n")
    with pytest.raises(XpError, match=r"env.secrets.JUDGE_KEY=null") as raised:
        load_provider(harbor(tmp_path), {"JUDGE_KEY": "of-the-judge"})
    assert raised.value.code is ExitCode.SECRET
    config = harbor(tmp_path, secrets={"JUDGE_KEY": None})
    environ = {**os.environ, "JUDGE_KEY": "of-the-judge"}
    load_provider(config, environ)
    found = resolved({"KEY": "${JUDGE_KEY}", "X": "${OTHER:-y}"}, config, environ)
    assert found == {"KEY": "of-the-judge", "X": "y"}


def words(folder: Path, *more: str) -> list[str]:
    return ["env=harbor", f"env.target={folder}", *more]


def test_the_sandbox_reaches_the_job_and_a_changed_task_is_another_set(tmp_path: Path) -> None:
    task = write_task(tmp_path / "a")
    (config,) = episode_config(compose(words(tmp_path, "env.sandbox=none"))).members.values()
    assert config.sandbox is SandboxKind.NONE
    before = source_digest(config)
    (task / "solution/solve.sh").write_text("true\n")
    assert source_digest(config) == before
    (task / "tests/test.sh").write_text(HELLO + "# changed\n")
    assert source_digest(config) != before


def test_without_docker_a_plan_is_made_and_the_environment_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "a")
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    spec = compose(words(tmp_path))
    assert build_plan(spec, "x").stages
    with pytest.raises(XpError, match=r"(?s)env.sandbox=docker needs .*docker.*"):
        load_provider(*[*episode_config(spec).members.values()], os.environ)
    assert [finding.verdict for finding in environments(spec)] == [Verdict.FAULT]


def test_a_default_does_not_hide_a_value_that_is_not_declared(tmp_path: Path) -> None:
    write_task(tmp_path / "a", config=CONFIG + "[environment.env]\nKEY = '${JUDGE_KEY:-none}'\n")
    with pytest.raises(XpError, match=r"set env.secrets.JUDGE_KEY=null") as raised:
        load_provider(harbor(tmp_path), {**os.environ, "JUDGE_KEY": "of-the-judge"})
    assert raised.value.code is ExitCode.SECRET
    load_provider(harbor(tmp_path), {**os.environ, "JUDGE_KEY": ""})


def test_a_plan_without_isolation_is_made_and_says_so(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    spec = compose(words(tmp_path, "env.sandbox=none"))
    assert build_plan(spec, "x").stages
    (line,) = sandbox_lines(spec)
    assert "without isolation" in line
    assert sandbox_lines(compose([])) == []
