"""A real Ray, started as a job starts it: what its processes know, what its records say, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.listeners import off_loopback
from tests.trainers.skyrl_parts import native, train_config
from tests.trainers.skyrl_tasks import (
    STRANGERS,
    ask_engine,
    crash,
    fail,
    kill_itself,
    linger,
    linger_with_engine,
    listen,
    look_around,
    serve,
)
from xp.backends.skyrl.worker import cluster, engine_watch
from xp.backends.skyrl.worker.cluster import run_task, running_ray
from xp.backends.skyrl.worker.train import MIDDLEWARE, native_config
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.errors import ExitCode, XpError
from xp.lib import private_ray
from xp.lib.loopback import free_port
from xp.lib.signals import StopSignal, stopping

pytestmark = pytest.mark.timeout(1500)

HALVES = {"WANDB_API_KEY": "4f1c-canary-of-wandb", "CLUE_STORE_TOKEN": "77ab-canary-of-clues"}
MARKER = "5d2e-marker-that-may-be-seen"


@pytest.fixture(scope="module", autouse=True)
def _environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, half in HALVES.items():
            patch.setenv(name, f"secret-{half}")
        # SkyRL copies this one into Ray's runtime environment; it is no secret.
        patch.setenv("NCCL_NET_PLUGIN", MARKER)
        patch.delenv("RAY_ADDRESS", raising=False)
        # As the launcher sets it for a job.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of a job whose Ray runs; each start of Ray takes half a minute of two cores."""
    path = tmp_path_factory.mktemp("ray")
    handler = signal.getsignal(signal.SIGTERM)
    with running_ray(native(train_config(), path), num_workers=1):
        assert signal.getsignal(signal.SIGTERM) == handler, (
            "Ray's own handler would kill its processes at once"
        )
        yield path


def run(place: Path, task: Callable[..., Any], *arguments: Any) -> Any:
    return run_task(native(train_config(), place), task, arguments)


def test_term_lets_the_task_close_its_sessions(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CANCEL_DEADLINE_S", DEADLINE_S)
    diary = tmp_path / "diary"

    def term() -> None:
        while not diary.exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=term, daemon=True).start()
    with pytest.raises(StopSignal), stopping():
        run(place, linger, diary)
    assert diary.read_text() == "closed"


def test_secrets_reach_the_task_and_none_of_rays_records(place: Path) -> None:
    # Pieces, put together over there: Ray keeps the arguments of tasks.
    wanted = [[half[:10], half[10:]] for half in (*HALVES.values(), MARKER)]
    variables, found = run(place, look_around, list(HALVES), wanted)
    assert variables == {name: f"secret-{half}" for name, half in HALVES.items()}
    assert [line for line in found if MARKER in line], "the search finds what is there"
    assert [line for line in found if MARKER not in line] == []


def test_a_fault_of_the_users_keeps_its_message_and_code(place: Path) -> None:
    with pytest.raises(XpError) as caught:
        run(place, fail)
    assert str(caught.value) == "too much of it is void"
    assert caught.value.code == ExitCode.UNHEALTHY


def test_a_fault_of_skyrls_is_told_with_its_traceback(place: Path) -> None:
    with pytest.raises(XpError, match="SkyRL failed: ValueError: a fault of SkyRL's") as caught:
        run(place, crash)
    assert caught.value.code is ExitCode.STAGE_FAILED
    assert "skyrl_tasks.py" in str(caught.value)


def test_a_lost_process_is_a_lost_engine_for_the_exit_code(place: Path) -> None:
    with pytest.raises(
        XpError, match=r"a process of SkyRL's has ended: .*the end of .*workers-.*log: "
    ) as caught:
        run(place, kill_itself)
    assert caught.value.code is ExitCode.ENGINE


@pytest.mark.parametrize(
    ("status", "code"), [(0, ExitCode.ENGINE), (500, ExitCode.ENGINE), (422, ExitCode.STAGE_FAILED)]
)
def test_an_engine_that_does_not_answer_skyrls_client_ends_the_stage(
    status: int, code: ExitCode, place: Path
) -> None:
    with pytest.raises(
        XpError, match="an engine did not answer" if code is ExitCode.ENGINE else "failed"
    ) as caught:
        run(place, ask_engine, free_port(), status)
    assert caught.value.code is code


def test_a_silent_engine_ends_the_stage_and_sessions_are_closed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watch, "DEADLINE_S", 1.0)
    monkeypatch.setattr(cluster, "CANCEL_DEADLINE_S", DEADLINE_S)
    diary = tmp_path / "diary"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            XpError, match=f"the engine at {url} did not answer for 1 s; the end of "
        ) as caught:
            run(place, linger_with_engine, url, diary)
    assert caught.value.code is ExitCode.ENGINE
    assert diary.read_text() == "closed"


def test_nobody_else_reaches_the_cluster(place: Path) -> None:
    """Ray takes what anybody hands it for code to run, unless it wants a token."""
    address, found = run(place, listen)
    assert {name for name, _, _ in found} >= {"gcs_server", "raylet"}
    assert off_loopback(found) == set()
    assert address[0] == "refused", address
    token = private_ray.token_file(Path(os.environ[private_ray.DIRECTORY]))
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    value = token.read_text()
    lines = [
        " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])
    ]
    assert not [line for line in lines if value in line]


def test_skyrls_engine_answers_its_client_and_no_stranger(place: Path) -> None:
    """What SkyRL starts without a key replaces weights and unpickles what it is sent."""
    (own, *others), (as_skyrl, with_key), found = run(place, serve)
    assert own == 200
    assert "[401]" in as_skyrl
    assert with_key == ""
    num = len(STRANGERS)
    assert others[:num] == [200] * num, "/health says nothing and is open"
    assert others[num:] == [401] * (len(others) - num)
    assert found
    assert off_loopback(found) == set()


def test_a_key_is_in_no_configuration_that_skyrl_writes_down() -> None:
    key = private_ray.engine_key()
    assert key is not None
    cfg = native_config(train_config(), "tiny")
    assert cfg.generator.inference_engine.engine_init_kwargs["middleware"] == [MIDDLEWARE]
    assert cfg.generator.inference_engine.router_init_kwargs["host"] == "127.0.0.1"
    assert key not in repr(cfg)
