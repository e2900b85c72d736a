"""Says what SkyRL's FSDP2 makes of model.lora on a checkpoint's network, so that a plan imports no torch."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from xp.errors import ExitCode, XpError
from xp.spec import LoraSpec, RunSpec, Strategy
from xp.worker.adapters import check_names, number_of, print_adapters
from xp.worker.media import media_names, network_from


def check_adapters(start: str, spec: RunSpec) -> None:
    """Raises XpError(PLAN) for adapters that FSDP2 cannot make on a checkpoint; Megatron names its layers itself."""
    from transformers import AutoConfig

    lora = spec.model.lora
    if lora is not None and spec.backend.parallel.strategy is not Strategy.MEGATRON:
        check_targets(AutoConfig.from_pretrained(start), lora)


def check_targets(model_config: Any, lora: LoraSpec) -> int | None:
    """Makes the adapters without weights, as SkyRL's HFModelWrapper does, and returns their number of parameters.

    Args:
        model_config: of transformers.
        lora: the adapters.

    Returns:
        None outside SkyRL's Python, whose peft may make others.

    Raises:
        XpError: (PLAN) a name of model.lora.target_modules matches no layer, or peft refuses the adapters.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    with torch.device("meta"):
        twin = network_from(model_config)
    check_names(twin, lora.target_modules or ())
    if find_spec("skyrl") is None:
        return None
    outside = {name.rpartition(".")[0] for name in media_names(twin)}
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=int(lora.alpha),
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.target_modules is None else [*lora.target_modules],
        exclude_modules=sorted(outside) or None,
    )
    try:
        return number_of(get_peft_model(twin, config))
    except ValueError as error:
        fix = "set model.lora.target_modules to other layers"
        raise XpError(
            f"model.lora: peft refuses these adapters: {error}; {fix}", ExitCode.PLAN
        ) from None


if __name__ == "__main__":
    print_adapters(check_targets, *sys.argv[1:])
