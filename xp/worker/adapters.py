"""Low-rank adapters: merged in float32, published beside the merged model, and played apart from their base.

A weight in bfloat16 has eight significant bits, so a sum of a weight and its update in it is often the weight alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib.reading import json_of
from xp.spec import LoraSpec
from xp.worker.media import has_media, is_named, load_network

ADAPTER: Final = "adapter"
"""Directory in that of a merged model, with the adapters."""
CONFIG: Final = "adapter_config.json"
FILES: Final = (CONFIG, "adapter_model.safetensors")
TIED: Final = ("embed_tokens", "lm_head")
"""Usual names of a model's embedding and head."""
NOT_TIED: Final = (
    "the model's embedding and head are one matrix (tie_word_embeddings): an adapter on one of them would change the"
    f" other in the merged model; leave out {' and '.join(TIED)}"
)
ENGINE_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters of an engine that vLLM takes (vllm/config/lora.py `MaxLoRARanks`)."""


def adapters_of(directory: str | Path) -> Path | None:
    """Directory of a model's adapters: of a checkpoint itself, or in that of a merged model. None means that it has
    none."""
    candidates = (Path(directory), Path(directory, ADAPTER))
    return next((path.absolute() for path in candidates if (path / CONFIG).is_file()), None)


def base_of(adapters: Path) -> str:
    """Hugging Face id or directory of the weights that adapters were trained on; outputs may have been moved since."""
    base = str(json_of(adapters / CONFIG, ExitCode.RUN_DIR)["base_model_name_or_path"])
    if not Path(base).is_absolute():
        return base
    # models/NAME or runs/RUN/sft
    ends = [Path(*Path(base).parts[-length:]) for length in (2, 3)]
    candidates = (Path(base), *(root / end for root in adapters.parents for end in ends))
    return next((str(path) for path in candidates if (path / "config.json").is_file()), base)


def load_policy(directory: str | Path, dtype: str) -> Any:
    """Loads a model for generation, with its adapters apart as in training.

    Args:
        directory: Hugging Face id or directory.
        dtype: data type of the computation.
    """
    import torch

    of_dtype = getattr(torch, dtype)
    adapters = adapters_of(directory)
    if adapters is None:
        return load_network(directory, of_dtype)
    from peft import PeftModel

    base = load_network(base_of(adapters), of_dtype)
    return PeftModel.from_pretrained(base, str(adapters)).get_base_model()


def merge_adapters(directory: Path, dtype: str) -> None:
    """Adds the merged model in float32 to a directory with adapters, which move to ADAPTER.

    A directory without adapters is not changed.

    Args:
        directory: Hugging Face directory, as peft or SkyRL saved it.
        dtype: data type of the frozen weights in the training's computation.
    """
    import torch

    if not (directory / CONFIG).is_file():
        return
    from peft import PeftModel

    base = load_network(base_of(directory.absolute()), getattr(torch, dtype)).float()
    merged = PeftModel.from_pretrained(base, str(directory)).merge_and_unload()
    (directory / ADAPTER).mkdir()
    for name in FILES:
        (directory / name).rename(directory / ADAPTER / name)
    (directory / "README.md").unlink(missing_ok=True)  # peft's form of a model card
    merged.save_pretrained(directory, max_shard_size="1TB")


def rank_in_engine(adapters: Path) -> int:
    """Largest rank of adapters that vLLM is to take for these."""
    rank = int(json_of(adapters / CONFIG, ExitCode.RUN_DIR)["r"])
    return next((size for size in ENGINE_RANKS if size >= rank), rank)


def check_untied(model: Any, targets: Sequence[str]) -> None:
    """Raises XpError(PLAN) for adapters on a model's embedding or head, if they are one matrix."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    names = [name.rpartition(".")[2] for name, module in model.named_modules() if module in ends]
    # A model with media has the flag of config.json in one place or in two; the weights decide.
    is_tied = None not in ends and ends[0].weight is ends[1].weight
    if is_tied and not {*names}.isdisjoint(targets):
        raise XpError(f"model.lora: {NOT_TIED}", ExitCode.PLAN)


def check_names(model: Any, targets: Sequence[str], others: Collection[str] = ()) -> None:
    """Raises XpError(PLAN) for a name of model.lora.target_modules that no layer of the text network has.

    Args:
        model: the network.
        targets: the names, as peft matches them: the end of a layer's path.
        others: names that peft takes beside those of layers.
    """
    if has_media(model.config):
        of_text = model.get_decoder()
    else:
        of_text = model
    layers = [name for name, _ in of_text.named_modules()]
    for target in targets:
        if target not in others and not any(is_named(layer, [target]) for layer in layers):
            raise XpError(
                f"model.lora.target_modules: {target} is no layer of this model; set names of its layers, or null for"
                " every linear layer but the head",
                ExitCode.PLAN,
            )


def number_of(adapted: Any) -> int:
    """Parameters of the adapters of peft's model."""
    return sum(
        parameter.numel()
        for name, parameter in adapted.named_parameters()
        if adapted.prefix in name
    )


def print_adapters(
    check: Callable[[Any, LoraSpec], int | None], directory: str, settings: str
) -> None:
    """Prints one line of JSON: `adapters`, their number of parameters, or `fault`, why there are none.

    Args:
        check: a trainer's function that makes the adapters on the network of transformers' configuration.
        directory: with the checkpoint's config.json; no weights are read.
        settings: model.lora as JSON.
    """
    from transformers import AutoConfig

    answer: dict[str, int | str | None]
    try:
        lora = LoraSpec(**json.loads(settings))
        answer = {"adapters": check(AutoConfig.from_pretrained(directory), lora)}
    except XpError as error:
        answer = {"fault": str(error)}
    print(json.dumps(answer), flush=True)
