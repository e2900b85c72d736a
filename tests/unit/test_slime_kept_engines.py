"""Counting of engines that Slime starts again, on a stand-in for its monitor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xp.backends.slime.worker import kept_engines
from xp.errors import ExitCode, XpError


class Monitor:
    """The part of slime.utils.health_monitor.RolloutHealthMonitor that xp uses."""

    def __init__(self, server_group: Any, args: Any) -> None:
        self._server_group, self._is_checking_enabled = server_group, False
        self._check_timeout = args.timeout

    def pause(self) -> None:
        self._is_checking_enabled = False

    def resume(self) -> None:
        self._is_checking_enabled = True

    def is_checking_enabled(self) -> bool:
        return self._is_checking_enabled

    def _kill_engine(self, rollout_engine_id: int) -> None:
        self._server_group.engines[rollout_engine_id] = None


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(kept_engines, "_watches", [])
    engines: list[Any] = ["a", "b"]
    return kept_engines._kept(Monitor)(SimpleNamespace(engines=engines), SimpleNamespace(timeout=1.0))


def test_a_restart_counts_once_the_engine_is_there_again(monitor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monitor._lose(1, RuntimeError("no answer"))
    assert "warning: engine 1 did not answer and was ended (no answer)" in capsys.readouterr().err
    monitor.resume()
    assert kept_engines.restarts() == 0
    monitor._server_group.engines[1] = "c"
    monitor.resume()
    assert (kept_engines.restarts(), kept_engines.restarts()) == (1, 0)


def test_an_engine_that_is_lost_a_fourth_time_ends_the_run(monitor: Any) -> None:
    for number in [0, 1] * 3:
        monitor._lose(number, RuntimeError("no answer"))
    kept_engines.check_restarts()
    monitor._lose(1, RuntimeError("no answer"))
    with pytest.raises(XpError, match=r"engine 1 was lost 4 times in this stage \(after 3 restarts\)") as ended:
        kept_engines.check_restarts()
    assert ended.value.code == ExitCode.ENGINE


def test_all_engines_are_asked_before_they_are_to_take_weights(monitor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(monitor, "_check_all", lambda: asked.append("all"))
    monitor.pause()
    monitor._run_health_checks()
    assert asked == []  # engines that sleep answer nothing
    monitor.resume()
    monitor.pause()
    assert asked == ["all"]


def test_a_request_to_an_engine_has_a_deadline() -> None:
    requests = SimpleNamespace(get=lambda _, **more: more, post=lambda _, **more: more, Session="its own")
    module: Any = SimpleNamespace(requests=requests)
    kept_engines._set_deadlines(module)
    kept_engines._set_deadlines(module)
    assert module.requests.get("url") == {"timeout": kept_engines.ANSWER_S}
    assert module.requests.post("url", json={}) == {"timeout": kept_engines.TRANSFER_S, "json": {}}
    assert module.requests.get("url", timeout=1) == {"timeout": 1}
    assert module.requests.Session == "its own"


def test_so_many_lost_episodes_as_may_be_void_are_borne() -> None:
    kept_engines.check_lost(2, 10, 0.2)
    with pytest.raises(XpError, match=r"3 of 10 episodes found no engine.*launcher\.max_restarts"):
        kept_engines.check_lost(3, 10, 0.2)
