"""Why SkyRL keeps the padding of some networks, and which text networks its Megatron takes out: its own code."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.tiny_media import media_model
from xp.backends.skyrl.worker.process import prepare_process

prepare_process()


def words(file: str) -> str:
    spec = find_spec("skyrl")
    assert spec is not None
    assert spec.submodule_search_locations
    place = Path(spec.submodule_search_locations[0], "backends/skyrl_train", file)
    return " ".join(place.read_text(encoding="utf-8").split())


def test_a_whole_network_with_media_is_not_packed(tmp_path: Path) -> None:
    import torch
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    path = str(media_model("gemma3", tmp_path))
    model = HFModelWrapper(path, use_flash_attention_2=False, bf16=False)
    model.remove_microbatch_padding = True  # its constructor needs FlashAttention for it
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(AssertionError, match="not supported with VLM"):
        model(ids, 2, attention_mask=torch.ones_like(ids))


def test_a_whole_network_with_media_is_not_split_over_ranks(tmp_path: Path) -> None:
    import torch
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    path = str(media_model("gemma3", tmp_path))
    settings = {"use_flash_attention_2": False, "bf16": False, "sequence_parallel_size": 2}
    model = HFModelWrapper(path, **settings)
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(AssertionError, match="Sequence parallelism is not supported with VLM"):
        model(ids, 2, attention_mask=torch.ones_like(ids))


def test_megatron_packs_no_whole_network_with_media() -> None:
    model = words("workers/megatron/megatron_model_wrapper.py")
    assert (
        'assert not self.remove_microbatch_padding, "VLM + microbatch padding removal unsup'
        in model
    )
    assert "VLM + context parallelism unsupported" in model


def test_megatron_takes_three_text_networks_out() -> None:
    bridges = words("workers/megatron/model_bridges.py")
    for name in ("qwen3_5_moe_text", "qwen3_5_text"):
        assert f'model_type="{name}"' in bridges
    assert bridges.count('TextForCausalLM",') == 4  # two of the sentinels, two of the bridges
    assert "class KimiK25TextBridge" in bridges


def test_megatron_separates_packed_episodes_of_recurrent_layers() -> None:
    packing = words("distributed/megatron/megatron_utils.py")
    assert "total_tokens=cu_seqlens_padded_cpu[-1]" in packing
    assert 'qkv_format="thd", cu_seqlens_q=cu_seqlens_padded' in packing
