"""backend=trl with the real vLLM on this machine's CPU: TRL's own trainer and transfer of weights (make test-vllm)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from tests.engines import needs_vllm
from tests.support.resuming import lose_once, process_with
from tests.support.vllm_on_cpu import configured, trained
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.errors import ExitCode, XpError
from xp.worker.step_log import check_gap

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
BAR = 1e-4
"""Largest gap between engine and trainer of one set of weights in float32."""


@contextmanager
def served(directory: Path, environ: dict[str, str]) -> Iterator[dict[str, str]]:
    """A training with the server that the stage starts beside it."""
    from xp.worker.engines.key_check import KEY
    from xp.worker.engines.server import URL, running

    config = TRLTrainConfig.from_json((directory / "config.json").read_text())
    assert config.server is not None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        with running(config.server, config.reference, "", directory / "vllm.log") as (url, key):
            yield {**environ, URL: url, KEY: key, "NO_PROXY": "127.0.0.1"}


def test_a_colocated_engine_agrees_after_every_update_and_each_broken_transfer_shows(
    tmp_path: Path,
) -> None:
    environ = configured(tmp_path, 9)
    gaps, found = trained(tmp_path, environ, {"4": "stale", "6": "layer", "8": "head"})
    print({number: f"{gap:.1e}" for number, gap in enumerate(gaps, 1)}, found["engine"])
    assert found["engine"]["vllm"].startswith("0.30")
    for step in (1, 2, 3, 5, 7, 9):
        assert gaps[step - 1] < BAR
    for step in (4, 6, 8):
        with pytest.raises(XpError, match=r"training\.max_logprob_gap=0\.0001"):
            check_gap(step, gaps[step - 1], BAR)


def test_the_run_stops_where_the_engine_has_another_type(tmp_path: Path) -> None:
    environ = configured(tmp_path, 3, "training.max_logprob_gap=1e-4")
    gaps, found = trained(tmp_path, environ, "dtype")
    assert gaps == []
    assert "rollout step 1: the engine's log-probabilities" in found["told"]
    print(found["told"].splitlines()[0])


@pytest.mark.parametrize(
    "overrides",
    [
        ("hardware.accelerators_per_node=2",),
        (
            "hardware.accelerators_per_node=2",
            "backend.parallel.strategy=ddp",
            "backend.engine.tensor_parallel=2",
        ),
        ("model.lora={rank: 4, alpha: 8.0, dropout: 0.0, target_modules: null}",),
    ],
    ids=["sharded over two", "one engine on two", "adapters"],
)
def test_other_layouts_agree_too(overrides: tuple[str, ...], tmp_path: Path) -> None:
    environ = configured(tmp_path, 3, *overrides)
    gaps, _ = trained(tmp_path, environ)
    print([f"{gap:.1e}" for gap in gaps])
    assert max(gaps) < BAR
    if (tmp_path / "accelerate.yaml").exists():
        assert yaml.safe_load((tmp_path / "accelerate.yaml").read_text())["num_processes"] == 2


def test_a_server_of_its_own_gets_the_weights_over_gloo(tmp_path: Path) -> None:
    environ = configured(
        tmp_path, 5, "backend.engine.placement=separate", "backend.engine.accelerators=1"
    )
    with served(tmp_path, environ) as environ:
        gaps, found = trained(tmp_path, environ, {"4": "stale"})
    print([f"{gap:.1e}" for gap in gaps])
    assert found["engine"]["mode"] == "server"
    assert max(gaps[:3] + gaps[4:]) < BAR
    assert gaps[3] > BAR


SERVED = (
    *(
        "backend.engine.name=vllm",
        "backend.engine.placement=separate",
        "backend.engine.accelerators=1",
    ),
    "backend.engine.memory_fraction=0.1",
)


IMPATIENT = """
import sys
from xp.__main__ import main
from xp.backends.trl.control import processes
processes.DEADLINE_S = 20.0
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_resumes_after_its_engine_hung(tmp_path: Path) -> None:
    """vLLM's HTTP process goes on to answer; the engine behind it does not."""

    def stop_engine(tree: list[psutil.Process]) -> None:
        for child in process_with("xp.worker.engines.key_check", tree).children(recursive=True):
            child.suspend()

    loss = lose_once(tmp_path, stop_engine, *SERVED, program=("-c", IMPATIENT))
    assert loss.exit_code == ExitCode.ENGINE
    assert "did not answer for 20 s and was killed; the end of " in loss.log
