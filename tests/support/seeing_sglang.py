"""A small engine with eyes for tests of Slime: SGLang's own request class and processor, and transformers' network.

Not real: SGLang's kernels and scheduler, and the HTTP server, as in tests/trainers/fake_sglang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

from tests.trainers.fake_sglang import FakeSglang
from tools.tiny_vlm.build import MARKS, MERGE, PATCH, tokenizer_with_marks, write_processor
from xp.episode.picture_reader import GRID, PIXELS, load_processor

TEXT: Final = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
    },
    "tie_word_embeddings": False,
}
VISION: Final = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
}
SPREAD: Final = 0.1
"""Standard deviation of the weights."""


def qwen3_5(directory: Path) -> Path:
    """Writes an untrained Qwen3.5 with its part for pictures, as transformers does; returns its directory."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = tokenizer_with_marks()
    start, end, image, video = (tokenizer.convert_tokens_to_ids(mark) for mark in MARKS)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(
        "qwen3_5",
        text_config={**TEXT, **ends, "vocab_size": len(tokenizer)},
        vision_config=VISION,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 or name.endswith("bias"):
                weight.normal_(0, SPREAD)
    model.save_pretrained(directory)
    write_processor("qwen3_vl", tokenizer, directory)
    return directory


class SeeingPolicy:
    """transformers' network, whose turns are given by a function of the ids.

    Args:
        directory: of the model.
        says: from the context to the ids of a turn.
    """

    def __init__(self, directory: Path, says: Callable[[list[int]], list[int]]) -> None:
        from transformers import AutoModelForImageTextToText

        self._model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
        self._model.eval()
        self._says = says
        self.inputs: dict[tuple[int, ...], dict[str, torch.Tensor]] = {}
        """Pixels of each context."""

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def write(
        self, ids: list[int], params: Any, is_aborted: Callable[[], bool]
    ) -> tuple[list[int], list[float], str]:
        del is_aborted
        written = self._says(ids)[: params.max_new_tokens]
        image_id = self._model.config.image_token_id
        # The network has no pixels for a placeholder that the policy writes.
        tokens = torch.tensor([[*ids, *(0 if token == image_id else token for token in written)]])
        inputs: dict[str, Any] = dict(self.inputs.get(tuple(ids), {}))
        if inputs:
            inputs["mm_token_type_ids"] = (tokens == image_id).long()
        logits = self._model(input_ids=tokens, use_cache=False, **inputs).logits[0].float()
        rows = logits.log_softmax(-1)[len(ids) - 1 : -1]
        return written, rows.gather(1, torch.tensor(written)[:, None])[:, 0].tolist(), "stop"


class SeeingSglang(FakeSglang):
    """Reads a request as the tokenizer's process of SGLang's server does, with SGLang's own code.

    Args:
        policy: writes the turns.
        directory: of the model.
        is_patched: whether SGLang has Slime's patch of its processor (docker/patch/latest/sglang.patch).
    """

    def __init__(self, policy: SeeingPolicy, directory: Path, *, is_patched: bool) -> None:
        from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory)
        super().__init__(policy, tokenizer.decode)
        settings = SimpleNamespace(
            mm_process_config={},
            skip_tokenizer_init=False,
            disable_fast_image_processor=True,
            keep_mm_feature_on_device=False,
        )
        self._processor = QwenVLImageProcessor(
            AutoConfig.from_pretrained(directory),
            settings,
            load_processor(directory, tokenizer),
            None,
            skip_mm_pool=True,
        )
        if is_patched:
            self._processor.load_mm_data = self._processor.legacy_load_mm_data
        self.asked: list[dict[str, Any]] = []
        """Bodies of all requests as they came; `requests` has the tokens that were read."""

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        self.asked.append(body)
        names = GenerateReqInput.__dataclass_fields__.keys() & body.keys()
        request = GenerateReqInput(**{name: body[name] for name in names})
        request.normalize_batch_and_arguments()
        ids = list(request.input_ids)
        if request.contains_mm_input():
            read = asyncio.run(
                self._processor.process_mm_data_async(request.image_data, ids, request)
            )
            ids = list(read.input_ids)
            grids = [item.model_specific_data[GRID].reshape(1, 3) for item in read.mm_items]
            inputs = {
                PIXELS: torch.cat([item.feature for item in read.mm_items]),
                GRID: torch.cat(grids),
            }
            self.policy.inputs[tuple(ids)] = inputs  # type: ignore[attr-defined]
        return super().generate({**body, "input_ids": ids})


@contextmanager
def seeing_engine(
    args: Any,
    directory: Path,
    says: Callable[[list[int]], list[int]],
    *,
    is_patched: bool = False,
) -> Iterator[SeeingSglang]:
    """The engine where Slime's client looks for its router."""
    from slime.rollout import sglang_rollout
    from slime.utils import http_utils
    from slime.utils.misc import SingletonMeta

    SingletonMeta._instances.pop(sglang_rollout.GenerateState, None)
    # Its processor needs torchvision, and xp's functions do not ask for it.
    sglang_rollout.load_processor = lambda *_, **__: None
    http_utils._http_client = None
    server = SeeingSglang(SeeingPolicy(directory, says), directory, is_patched=is_patched)
    with server:
        host, port = server.address.split(":")
        args.sglang_router_ip = host
        args.sglang_router_port = int(port)
        http_utils.init_http_client(args)
        yield server
