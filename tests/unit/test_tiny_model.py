"""The model that xp ships: its network, its place, and what its maker does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from tools.tiny_model.__main__ import make_tokenizer, ship
from tools.tiny_model.build import Build
from tools.tiny_model.tokenizer import chat_template
from xp.composition import compose
from xp.lib.digest import file_digest
from xp.lib.models.network import mismatches
from xp.lib.verified import damaged
from xp.worker.publish import take_name
from xp.worker.tiny_model import (
    MANIFEST,
    PLACE,
    SHIPPED,
    VISION_PLACE,
    VISION_SHIPPED,
)

BUILD = Build(
    hidden_size=16,
    num_layers=1,
    head_dim=8,
    intermediate_size=16,
    warmup_steps=3,
    warmup_batch_size=2,
    warmup_ramp_steps=2,
    bare_share=0.5,
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(BUILD)


def test_the_template_is_the_one_that_trl_knows(tokenizer: Any) -> None:
    from trl.chat_template_utils import supports_tool_calling

    assert tokenizer.chat_template == chat_template()
    assert supports_tool_calling(tokenizer)


@pytest.mark.parametrize(
    ("option", "place", "shipped", "size"),
    [
        ("tiny", PLACE, SHIPPED, 3_000_000),
        ("tiny_vlm", VISION_PLACE, VISION_SHIPPED, 2_000_000),
    ],
)
def test_an_option_describes_its_shipped_model(
    option: str, place: str, shipped: Path, size: int, tmp_path: Path
) -> None:
    model = compose([f"model={option}"]).model
    assert model.architecture is not None
    config = json.loads((shipped / "config.json").read_text())
    assert mismatches(model.architecture.model_dump(), config) == []
    assert model.path == place
    assert place.endswith(file_digest(shipped / "model.safetensors")[:12])
    # A directory that is verified gets a file of what was read.
    copy = shutil.copytree(shipped, tmp_path / "copy")
    assert damaged(copy / MANIFEST) is None
    assert sum(file.stat().st_size for file in shipped.iterdir()) < size


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_shipped_model_is_what_its_command_makes(tmp_path: Path) -> None:
    """Files other than the weights are equal byte for byte; weights depend on the machine's arithmetic."""
    loss = ship(tmp_path / "again")
    made, shipped = (
        json.loads((place / MANIFEST).read_text()) for place in (tmp_path / "again", SHIPPED)
    )
    assert made["build"] == shipped["build"]
    assert {n: d for n, d in made["files"].items() if n != "model.safetensors"} == {
        n: d for n, d in shipped["files"].items() if n != "model.safetensors"
    }
    assert abs(loss - shipped["warmup_loss"]) < 0.02


@pytest.mark.parametrize(
    ("there", "is_replaced"),
    [(None, True), ('{"files": {"model.safetensors": "0"}}', True), ('{"files": {}}', False)],
)
def test_a_finished_model_is_left_alone_and_a_torn_one_is_replaced(
    there: str | None, is_replaced: bool, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "model.safetensors").write_text("torn")
    if there is not None:
        (target / MANIFEST).write_text(there)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / MANIFEST).write_text("mine")
    take_name(mine, target, lambda: damaged(target / MANIFEST) is None)
    assert ((target / MANIFEST).read_text() == "mine") is is_replaced
