"""Low-rank adapters under TRL: the policy that they start from, the weights for an engine, and their dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.lib.models.network import KEYS
from xp.spec import LoraSpec, Model
from xp.worker.adapters import adapters_of, base_of, check_names, check_untied, number_of
from xp.worker.media import is_named, load_network, media_names, network_from, text_layers
from xp.worker.network import disable_dropout

BASE = ".base_layer"
"""What peft puts into the name of a weight with an adapter, once for each wrapper."""
FUSED = "gate_up_proj"
"""Tensor of experts with two projections side by side."""


def start_policy(start: str, policy: Model) -> tuple[Any, Any]:
    """The model that training starts from, and peft's configuration of new adapters.

    In bfloat16, adapters of the start with the same settings are trained on, without a configuration of new ones: if
    they were merged, most of their update would be lost.

    Args:
        start: Hugging Face id or directory.
        policy: the spec's model.
    """
    import torch

    lora = policy.lora
    dtype = loaded_dtype(policy)
    if lora is None:
        return _loaded(start, policy), None
    from peft import (
        LoraConfig,
        get_peft_model,
        get_peft_model_state_dict,
        load_peft_weights,
        set_peft_model_state_dict,
    )

    adapters = adapters_of(start)
    if adapters is None or dtype is torch.float32:
        model = _loaded(start, policy)
        check_untied(model, lora.target_modules or ())
        check_targets(model.config, lora)
        return model, peft_config(lora, model)
    base = _loaded(base_of(adapters), policy)
    check_targets(base.config, lora)
    model = get_peft_model(base, peft_config(lora, base))
    weights = load_peft_weights(str(adapters), device="cpu")
    shapes = {name: value.shape for name, value in get_peft_model_state_dict(model).items()}
    alpha = LoraConfig.from_pretrained(str(adapters)).lora_alpha
    if alpha == lora.alpha and shapes == {name: value.shape for name, value in weights.items()}:
        set_peft_model_state_dict(model, weights)
        return model, None
    print(
        f"{adapters}: not the settings of model.lora, so these adapters are merged and rounded to {dtype}",
        flush=True,
    )
    model = _loaded(start, policy)
    return model, peft_config(lora, model)


def _loaded(start: str, policy: Model) -> Any:
    """The network of a Hugging Face id or a directory, without dropout."""
    directory = Path(start)
    if directory.is_dir():
        start = str(directory.absolute())  # as peft writes it beside the adapters
    model = load_network(start, loaded_dtype(policy), trains_vision=policy.train_vision)
    disable_dropout(model)
    return model


def loaded_dtype(policy: Model) -> Any:
    """Data type of the loaded weights: float32 if trained, since bfloat16 loses an update of 1e-6; else the
    computation's."""
    import torch

    if policy.lora is None:
        return torch.float32
    return getattr(torch, policy.dtype.value)


def peft_config(lora: LoraSpec, model: Any) -> Any:
    """Configuration for peft; the head gets no adapter, since TRL refuses it, nor does a part for pictures.

    transformers keeps experts as one tensor each, which is not a linear layer. For some families peft 0.21 takes names
    of layers for these tensors, so that dense layers and shared experts of the same names would have no adapters.
    What `target_modules` do not reach is in `target_parameters`.
    """
    from peft import LoraConfig

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=text_layers(model, lora.target_modules),
    )
    layers = linear_layers(model)
    expert_ends = {end for end in map(end_of, layers) if _is_of_experts(model, end)}
    if lora.target_modules is None:
        _adapt_all(config, model, lora, expert_ends)
    else:
        named = [name for name in layers if is_named(name, lora.target_modules)]
        hidden = [f"{name}.weight" for name in named if end_of(name) in expert_ends]
        config.target_parameters = hidden or None
    return config


def _adapt_all(config: Any, model: Any, lora: LoraSpec, expert_ends: set[str]) -> None:
    """Sets the targets of adapters on every linear layer but the head, and on the experts."""
    experts = expert_parameters(model)
    layers = linear_layers(model)
    adapted = [name for name in layers if not _is_refused(model, end_of(name))]
    if not experts and not expert_ends and len(adapted) == len(layers):
        return
    config.target_modules = [name for name in adapted if end_of(name) not in expert_ends]
    hidden = [f"{name}.weight" for name in adapted if end_of(name) in expert_ends]
    config.target_parameters = [*experts, *hidden] or None
    if any(end_of(name) == FUSED for name in experts):
        # As in peft's own conversion: gate and up in one tensor have the rank of both, and the same scale.
        fused = rf".*\.{FUSED}"
        config.rank_pattern = {fused: 2 * lora.rank}
        config.alpha_pattern = {fused: 2 * lora.alpha}


def end_of(name: str) -> str:
    """The last part of a layer's path."""
    return name.rpartition(".")[2]


def linear_layers(model: Any) -> list[str]:
    """Paths of the linear layers of the text network, without the head."""
    from torch import nn

    layers = text_layers(model, None)
    if isinstance(layers, list):
        return layers
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]


def expert_parameters(model: Any) -> list[str]:
    """Names of the text network's parameters that hold all experts of a layer: three dimensions, the first one the
    experts."""
    config = model.config.get_text_config()
    numbers = {getattr(config, key, None) for key in KEYS["num_experts"]} - {None}
    outside = media_names(model)
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim == 3
        and parameter.shape[0] in numbers
        and ".experts." in name
        and name not in outside
    ]


def _is_of_experts(model: Any, name: str) -> bool:
    """Returns whether peft takes a layer's name for the experts' tensors of this family."""
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    probe = LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(probe, model, None)
    except ValueError:  # one half of a fused pair
        return True
    return bool(probe.target_parameters)


def _is_refused(model: Any, name: str) -> bool:
    """Returns whether peft refuses adapters on layers of this name in this family: out_proj of Mamba's layers."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

    try:
        _check_lora_target_modules_mamba(LoraConfig(), model, name)
    except ValueError:
        return True
    return False


def check_targets(model_config: Any, lora: LoraSpec) -> int:
    """Makes the adapters without weights, by peft itself, and returns their number of parameters.

    Args:
        model_config: of transformers.
        lora: the adapters.

    Raises:
        XpError: (PLAN) a name of model.lora.target_modules matches no layer, or peft refuses the adapters: half of a
            fused pair, or dropout on experts.
    """
    import torch
    from peft import get_peft_model

    with torch.device("meta"):
        twin = network_from(model_config)
    targets = lora.target_modules or ()
    check_names(twin, targets, {name for name in targets if _is_of_experts(twin, name)})
    config = peft_config(lora, twin)
    try:
        adapted = get_peft_model(twin, config)
    except ValueError as error:
        reason = str(error)
        fix = "set target_modules=null, or name both of a fused pair"
        if lora.dropout > 0 and "lora_dropout" in reason:
            fix = "set model.lora.dropout=0"
        raise XpError(
            f"model.lora: peft refuses these adapters: {reason}; {fix}", ExitCode.PLAN
        ) from None
    return number_of(adapted)


def merged_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the whole model's weights, with the adapters merged; the model is not changed.

    Each layer is merged by peft itself, in float32 and apart from the frozen weights: peft's merge_adapter and
    unmerge_adapter would round these twice, so that they drift with every update.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    base = model.get_base_model()
    for name, parameter in base.named_parameters():
        if model.prefix in name:
            continue
        value = parameter.data
        if BASE in name:
            wrapper = base.get_submodule(name.partition(f"{BASE}.")[0])
            if isinstance(wrapper, BaseTunerLayer):
                value = _merged(wrapper, parameter)
        yield name.replace(BASE, ""), value


def _merged(outermost: Any, parameter: Any) -> Any:
    """One weight with its adapters; wrappers of several weights of one layer are nested in the outermost one."""
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    wrappers = []
    layer = outermost
    while isinstance(layer, BaseTunerLayer):
        wrappers.append(layer)
        layer = layer.base_layer
    frozen = [(weight, weight.data) for weight in layer.parameters()]
    try:
        for weight, value in frozen:
            # In types that would lose the update, float32 is exact.
            weight.data = value.to(torch.promote_types(value.dtype, torch.float32), copy=True)
        for wrapper in wrappers:
            wrapper.merge()
        return parameter.data.to(
            next(value.dtype for weight, value in frozen if weight is parameter)
        )
    finally:
        for wrapper in wrappers:
            wrapper.merged_adapters.clear()
        for weight, value in frozen:
            weight.data = value


def set_dropout(model: Any, probability: float) -> None:
    """Sets the dropout of the adapters of `model`; TRL's `disable_dropout` sets it to 0 with the base model's."""
    for dropout in _dropouts(model):
        dropout.p = probability


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Context manager: the adapters of `model` have no dropout, also while the model is trained."""
    probabilities = [(dropout, dropout.p) for dropout in _dropouts(model)]
    set_dropout(model, 0.0)
    try:
        yield
    finally:
        for module, probability in probabilities:
            module.p = probability


def _dropouts(model: Any) -> Iterator[Any]:
    from peft.tuners.lora import LoraLayer
    from torch.nn import Dropout

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            # A layer without dropout has an identity there.
            yield from (
                module for module in layer.lora_dropout.values() if isinstance(module, Dropout)
            )
