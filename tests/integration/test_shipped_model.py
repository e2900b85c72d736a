"""The model of `model=tiny` comes with the package: the same files that `make tiny-model` would make."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from xp.builtin.model.tiny_model import MANIFEST, SHIPPED, is_shipped, is_whole
from xp.composition import compose
from xp.planning.stages import made_from, model_config

PROGRAM = """
import sys
from pathlib import Path
from xp.builtin.model.tiny_model import main
main(sys.argv[1:])
print("HEAVY", sorted({"torch", "transformers", "trl"} & set(sys.modules)))
"""


def test_the_package_holds_the_defaults_own_model() -> None:
    model = compose([]).model
    assert is_shipped(made_from(model)), "the code that makes the model changed: run `make tiny-model` and commit it"
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 3_000_000


@pytest.mark.parametrize(
    "override", ["model.build.seed=1", "model.build.warmup_steps=30", "model.max_context_tokens=2048"]
)
def test_another_build_is_not_the_shipped_one(override: str) -> None:
    assert not is_shipped(made_from(compose([override]).model))


def test_the_model_stage_copies_it_without_importing_a_trainer(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(model_config(compose([]).model, "models/tiny", 2))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(config)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "copied from xp" in done.stdout
    assert "HEAVY []" in done.stdout
    assert is_whole(tmp_path / "models/tiny")
    assert (tmp_path / "models/tiny/model.safetensors").read_bytes() == (SHIPPED / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_shipped_model_is_what_its_command_makes(tmp_path: Path) -> None:
    """Files other than the weights are equal byte for byte; weights depend on the machine's arithmetic."""
    from tools.ship_model import ship

    loss = ship(tmp_path / "again")
    made, shipped = (json.loads((place / MANIFEST).read_text()) for place in (tmp_path / "again", SHIPPED))
    assert made["made_from"] == shipped["made_from"]
    assert {n: d for n, d in made["files"].items() if n != "model.safetensors"} == {
        n: d for n, d in shipped["files"].items() if n != "model.safetensors"
    }
    assert abs(loss - shipped["warmup_loss"]) < 0.02
