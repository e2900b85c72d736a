"""What all trainers change in a network before it is trained: no dropout, and no gradients through frozen parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from xp.worker.media import media_names, without_adapters


def disable_dropout(model: Any) -> None:
    """Sets all dropout probabilities of a Hugging Face model, and of its configuration, to 0; adapters keep theirs.

    The ratio of the loss is between two passes of the same network.
    Attention takes its probability from a number (`attention_dropout`), which TRL's `disable_dropout` leaves.
    """
    from torch.nn import Dropout

    modules = [module for name, module in model.named_modules() if "lora_" not in name]
    configs = {id(module.config): module.config for module in modules if hasattr(module, "config")}
    for owner in (*modules, *configs.values()):
        for name, value in list(vars(owner).items()):
            if "drop" in name and isinstance(value, float):
                setattr(owner, name, 0.0)
        if isinstance(owner, Dropout):
            owner.p = 0.0


def free_media_inputs(model: Any) -> None:
    """Makes transformers ask for no gradients of the inputs of frozen parts, now and later.

    With gradient checkpointing or adapters, transformers' `enable_input_require_grads` asks for them in each part whose
    first layer it can find: a frozen vision part would keep its activations, and be passed backward for nothing.
    It leaves a part out that names no first layer.

    Args:
        model: the network, with adapters or without.
    """
    base = without_adapters(model)
    of_media = set()
    for part in _frozen_parts(base, media_names(model)):
        part.get_input_embeddings = _no_first_layer
        of_media |= {id(module._forward_hooks) for module in part.modules()}
    for handle in getattr(base, "_require_grads_hooks", ()):
        if id(handle.hooks_dict_ref()) in of_media:
            handle.remove()


def _no_first_layer() -> None:
    raise NotImplementedError("a frozen part, whose inputs need no gradients")


def _frozen_parts(base: Any, media: Collection[str]) -> Iterator[Any]:
    """The networks of transformers within a model that hold frozen weights of pictures or sound alone.

    Args:
        base: the model without the wrapper of adapters.
        media: names of all weights of such parts.
    """
    from transformers import PreTrainedModel

    media = set(media)
    for path, module in base.named_modules():
        if not isinstance(module, PreTrainedModel):
            continue
        names = {f"{path}.{name}" for name, _ in module.named_parameters()}
        is_frozen = not any(weight.requires_grad for weight in module.parameters())
        if names and names <= media and is_frozen:
            yield module
