"""Programs of backend=tinker without a server: where a fine-tuning and a play end, what is billed, and what an answer means."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tinker", reason="needs .venv-tinker: make tinker-server")
import tinker

from tests.support.http_server import Reply, http_server
from tests.support.sections import PLACES, run_spec
from xp.contrib.tinker.worker import examine
from xp.contrib.tinker.worker.rollouts import ServiceRollouts, _ServiceClosed
from xp.contrib.tinker.worker.sft import _batches
from xp.episode.metrics_file import MetricsFile, read_metrics
from xp.errors import ExitCode, XpError
from xp.worker.demonstrations import Example
from xp.worker.sft import Updates


@pytest.mark.parametrize("num_updates", [3, 10, 13])
def test_a_fine_tuning_makes_the_updates_that_are_asked_for(num_updates: int) -> None:
    spec = SimpleNamespace(sft=SimpleNamespace(batch_size=2), seed=1)
    config: Any = SimpleNamespace(spec=spec)
    examples = [Example([number, 1], [0, 1]) for number in range(20)]
    batches = list(_batches(examples, config, num_updates))
    assert [len(batch) for batch in batches] == [2] * num_updates
    ids = [example.ids[0] for batch in batches[:10] for example in batch]
    assert len(set(ids)) == len(ids), "an epoch has each example once"


def test_each_line_of_a_fine_tuning_has_its_own_costs(tmp_path: Any) -> None:
    file = tmp_path / "metrics.jsonl"
    costs = iter([{"cost/usd": 1.0}, {"cost/usd": 2.0}, {"cost/usd": 4.0}])
    updates = Updates(MetricsFile(file, "sft", 1), 2, 10.0, lambda: next(costs))
    updates.begin(0, 0.5)
    updates.end(1, 0.4, 1.0, 0.1, is_last=False)
    updates.end(2, 0.3, 1.0, 0.1, is_last=True)
    updates.finish(2, 0.2)
    assert [line["cost/usd"] for line in read_metrics(file, "sft")] == [1.0, 2.0, 4.0]


def test_no_step_begins_after_the_end_of_a_play() -> None:
    players: Any = SimpleNamespace(
        config=SimpleNamespace(spec=run_spec(), places=PLACES),
        engine=lambda *_: None,
        chat=None,
        mix=SimpleNamespace(max_sessions=lambda: 1),
        recorder=None,
    )
    rollouts = ServiceRollouts(players, [], None)
    rollouts.close()
    with pytest.raises(_ServiceClosed):
        rollouts.play(0, 0)


class Refused(tinker.TinkerError):
    def __init__(self, status: int) -> None:
        super().__init__("no")
        self.status_code = status


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Refused(401), ExitCode.SECRET, "set the key"),
        (Refused(408), ExitCode.ENGINE, "try again"),
        (Refused(429), ExitCode.ENGINE, "try again"),
        (Refused(503), ExitCode.ENGINE, "try again"),
        (TimeoutError("late"), ExitCode.ENGINE, "try again"),
        (Refused(422), ExitCode.PLAN, "install the pinned SDK"),
        (ValueError("another form"), ExitCode.PLAN, "install the pinned SDK"),
    ],
)
def test_an_examination_tells_a_busy_service_from_one_of_another_version(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: ExitCode, said: str
) -> None:
    def client(**_: Any) -> None:
        assert os.environ["TINKER_TELEMETRY"] == "0"
        raise error

    monkeypatch.setattr(tinker, "ServiceClient", client)
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    monkeypatch.setenv("TINKER_API_KEY", "tml-key")
    with http_server(lambda _: Reply({"name": "Some", "version": "1"})) as server:
        monkeypatch.setenv("TINKER_BASE_URL", server.url)
        with pytest.raises(XpError, match=said) as raised:
            examine.main(["Org/Model"])
    assert raised.value.code is code
    assert server.url not in str(raised.value), "addresses are secrets"
