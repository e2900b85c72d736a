"""The adapters of a training on a service as a Hugging Face directory, merged where the model's weights are here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xp.contrib.tinker.worker.service import Service
from xp.contrib.tinker.worker.state import write_state
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode
from xp.lib.atomic import write_atomically
from xp.lib.models.files import local_directory, missing_parts
from xp.lib.reading import json_of
from xp.spec import RunSpec
from xp.worker.adapters import CONFIG, merge_adapters
from xp.worker.hub_model import FILES, WEIGHTS, fetched
from xp.worker.places import model_place
from xp.worker.publish import publish

TOKENIZER: Final = [name for name in FILES if name != WEIGHTS]
"""Files of a model without its weights, which stay on the service."""
NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that the service's names of checkpoints cannot have."""


def tokenizer_place(spec: RunSpec, start: str) -> str:
    """Directory with the policy's tokenizer; of a hub's model it is downloaded without the weights.

    Args:
        spec: the run's.
        start: location of the weights that the training begins with.
    """
    if local_directory(start, Path()) is not None or start != model_place(spec.model):
        return start
    return str(fetched(spec.model.path, spec.model.revision, TOKENIZER))


def service_name(run: str, rest: str) -> str:
    """Name of a checkpoint on the service."""
    return NAME.sub("_", f"{Path(run).name}-{rest}")


def save_adapters(
    service: Service, training: Any, spec: RunSpec, name: str, directory: Path
) -> None:
    """Downloads the adapters, in peft's form, and names the layers and the model that they belong to.

    SkyRL's archive names no layers, for which peft takes its family's usual ones.
    """
    from safetensors import safe_open

    service.download(training, name, directory)
    with safe_open(directory / "adapter_model.safetensors", "pt") as file:
        layers = {key.partition(".lora_")[0].rpartition(".")[2] for key in file.keys()}  # noqa: SIM118
    place = model_place(spec.model)
    config = json_of(directory / CONFIG, ExitCode.RUN_DIR) | {
        "base_model_name_or_path": str(local_directory(place, Path()) or place),
        "target_modules": sorted(layers),
        "task_type": "CAUSAL_LM",
    }
    write_atomically(directory / CONFIG, json.dumps(config, indent=1, default=str) + "\n")


def publish_policy(
    service: Service,
    training: Any,
    spec: RunSpec,
    chat: ChatTokens,
    target: Path,
    state: Mapping[str, Any],
) -> None:
    """Publishes adapters, tokenizer and the state on the service; where the model's weights are on this machine the
    merged model too."""

    def save(staged: Path) -> None:
        staged.mkdir(parents=True)
        name = service_name(target.parent.name, target.name)
        save_adapters(service, training, spec, name, staged)
        base = local_directory(model_place(spec.model), Path())
        if base is None or any(missing_parts(base)):
            print(f"{target} has adapters alone: the model's weights are not here", flush=True)
        else:
            merge_adapters(staged, spec.model.dtype.value)
        chat.tokenizer.save_pretrained(staged)
        write_state(staged, state)

    publish(save, target, chat.end_ids, chat.template)
