"""Which weights are trained, sent to an engine and published, on families that name their parts differently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from tests.support.cases import few
from tests.support.families import FAMILIES, write_family
from xp.fields.model import OUTSIDE_TEXT
from xp.worker.media import load_network, restore_media, text_names_of, text_weights

WITH_MEDIA = [family for family, entry in FAMILIES.items() if entry.media]


@pytest.mark.parametrize("family", few(WITH_MEDIA, 8))
def test_text_is_trained_and_sent_and_the_rest_is_published_as_it_was(
    family: str, tmp_path: Path
) -> None:
    start = write_family(family, tmp_path / "start")
    model = load_network(start, torch.float32)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    frozen = {name for name, _ in model.named_parameters()} - trained
    sent = text_weights(model).keys()
    assert trained <= sent
    assert frozen
    assert frozen.isdisjoint(sent)
    layers = {name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    adapted = {name for name in layers if not re.fullmatch(OUTSIDE_TEXT, name)}
    assert adapted == {name for name in layers if f"{name}.weight" in trained} - {"lm_head"}

    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    published = tmp_path / "published"
    model.save_pretrained(published)
    restore_media(published, start)
    before = load_file(start / "model.safetensors")
    after = load_file(published / "model.safetensors")
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    of_text = text_names_of(start) & before.keys()
    assert changed <= of_text
    # Buffers have other names in some files, and nothing trains them.
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    assert {name.rpartition(".")[2] for name in of_text - changed} <= buffers
    assert before.keys() - of_text
    AutoModelForImageTextToText.from_pretrained(published)
