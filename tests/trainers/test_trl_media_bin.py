"""Parts for pictures of a checkpoint in pytorch_model.bin are published as they were, as those of safetensors are."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.tiny_media import media_model
from xp.worker.media import restore_media, text_names_of


def test_a_file_of_torchs_gives_the_parts_beside_the_text(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    start = Path(media_model("gemma3", tmp_path / "start"))
    published = tmp_path / "published"
    shutil.copytree(start, published)
    weights = load_file(start / "model.safetensors")
    of_text = text_names_of(start)
    torch.save(weights, start / "pytorch_model.bin")
    (start / "model.safetensors").unlink()
    changed = {name: weight + 1 for name, weight in weights.items()}
    save_file(changed, published / "model.safetensors", metadata={"format": "pt"})
    restore_media(published, start)
    written = load_file(published / "model.safetensors")
    assert weights.keys() - of_text
    assert written.keys() == weights.keys()
    for name, weight in written.items():
        expected = changed[name] if name in of_text else weights[name]
        assert torch.equal(weight, expected), name
