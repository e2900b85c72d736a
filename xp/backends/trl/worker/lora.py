"""Low-rank adapters under TRL: the policy that they start from, the weights for an engine, and their dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xp.spec import LoraSpec
from xp.worker.adapters import adapters_of, base_of, check_untied
from xp.worker.learning_rate import disable_dropout
from xp.worker.media import load_network, text_layers


def start_policy(start: str, lora: LoraSpec | None, dtype: Any) -> tuple[Any, Any]:
    """The model that training starts from, and peft's configuration of new adapters.

    In bfloat16, adapters of the start with the same settings are trained on, without a configuration of new ones: if
    they were merged, most of their update would be lost.

    Args:
        start: Hugging Face id or directory.
        lora: None: all weights are trained.
        dtype: data type of the weights.
    """
    import torch

    def loaded(place: str) -> Any:
        here = Path(place)  # as peft writes it beside the adapters
        model = load_network(str(here.absolute()) if here.is_dir() else place, dtype)
        disable_dropout(model)
        return model

    if lora is None:
        return loaded(start), None
    from peft import (
        LoraConfig,
        get_peft_model,
        get_peft_model_state_dict,
        load_peft_weights,
        set_peft_model_state_dict,
    )

    adapters = adapters_of(start)
    if adapters is None or dtype is torch.float32:
        model = loaded(start)
        check_untied(model, lora.target_modules or ())
        return model, peft_config(lora, model)
    base = loaded(base_of(adapters))
    new = peft_config(lora, base)
    model = get_peft_model(base, new)
    weights = load_peft_weights(str(adapters), device="cpu")
    shapes = {name: value.shape for name, value in get_peft_model_state_dict(model).items()}
    alpha = LoraConfig.from_pretrained(str(adapters)).lora_alpha
    if alpha == lora.alpha and shapes == {name: value.shape for name, value in weights.items()}:
        set_peft_model_state_dict(model, weights)
        return model, None
    print(
        f"{adapters}: not the settings of model.lora, so these adapters are merged; rounded to {dtype}",
        flush=True,
    )
    return loaded(start), new


def peft_config(lora: LoraSpec, model: Any) -> Any:
    """Configuration for peft; the head gets no adapter, since TRL refuses it, nor does a part for pictures."""
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=text_layers(model, lora.target_modules),
    )


def merged_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the whole model's weights, with the adapters merged; the model is not changed.

    peft's merge_adapter and unmerge_adapter round the frozen weights twice, so that they drift with every update.
    """
    base = model.get_base_model()
    for name, parameter in base.named_parameters():
        if model.prefix in name:
            continue
        value, (owner, _, rest) = parameter.data, name.partition(".base_layer.")
        if rest == "weight":
            update = base.get_submodule(owner).get_delta_weight(model.active_adapter).detach()
            value = (value.float() + update.float()).to(value.dtype)
        yield name.replace(".base_layer.", "."), value


def set_dropout(model: Any, probability: float) -> None:
    """Sets the dropout of the adapters of `model`; TRL's `disable_dropout` sets it to 0 with the base model's."""
    for one in _dropouts(model):
        one.p = probability


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Context manager: the adapters of `model` have no dropout, also while the model is trained."""
    probabilities = [(one, one.p) for one in _dropouts(model)]
    set_dropout(model, 0.0)
    try:
        yield
    finally:
        for one, probability in probabilities:
            one.p = probability


def _dropouts(model: Any) -> Iterator[Any]:
    from peft.tuners.lora import LoraLayer
    from torch.nn import Dropout

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            # A layer without dropout has an identity there.
            yield from (one for one in layer.lora_dropout.values() if isinstance(one, Dropout))
