"""The model of a service's last step can be a run's best: its evaluation is that of the trained model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tinker", reason="needs .venv-tinker: make tinker-server")

from tests.support.sections import PLACES, run_spec
from xp.contrib.tinker.worker import held_out
from xp.worker.best import BestEvaluation, BestKeeper


class Played(held_out.ServiceEvaluation):
    """An evaluation whose episodes are played already."""

    def __init__(self, config: Any, added: list[str]) -> None:
        self._spec = config.spec
        self._players: Any = SimpleNamespace(
            config=config, chat=SimpleNamespace(end_ids=[2], template=None)
        )
        self._whole: Any = SimpleNamespace(
            is_due=lambda _: True, add=lambda name, _: added.append(name)
        )

    def _play_model(self, sampler: Any, name: str) -> list[Any]:
        return []


@pytest.mark.parametrize("step", [4, 3])
def test_the_model_of_the_last_step_is_the_best_if_its_reward_is(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An early stop at step 3 has evaluated that step already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(held_out, "evaluated_while_training", lambda *_: 0.5)
    (tmp_path / PLACES.run).mkdir(parents=True)
    spec = run_spec(evaluation__keep_best=True, evaluation__every=1)
    config: Any = SimpleNamespace(spec=spec, places=PLACES, num_steps=4)
    added: list[str] = []

    def save(directory: Path) -> None:
        (directory / "adapter_model.safetensors").touch()

    Played(config, added).play_trained(None, step, save)
    keeper = BestKeeper.of(config)
    assert keeper is not None
    assert keeper.best() == (BestEvaluation(4, 0.5) if step == 4 else None)
    assert added == ["after"]
