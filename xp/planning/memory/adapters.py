"""Asks the trainer's peft, in a short process, how large model.lora's adapters are on a checkpoint of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xp.fields.shared import is_megatron
from xp.lib.facts import fact
from xp.lib.models.files import local_directory
from xp.lib.python_program import answer_of
from xp.planning.memory.weights import peft_adapters
from xp.planning.runtime import trainer_python
from xp.spec import Architecture, BackendName, RunSpec
from xp.worker.places import model_place

PROGRAMS: Final = {
    BackendName.TRL: "xp.backends.trl.worker.adapters_probe",
    BackendName.SKYRL: "xp.backends.skyrl.worker.adapters_probe",
}


def adapter_parameters(spec: RunSpec, shape: Architecture, *, adapts_experts: bool) -> int:
    """Parameters of the run's adapters: peft's own number where it is known, else that of every linear layer.

    Args:
        spec: with model.lora.
        shape: the network.
        adapts_experts: as for `peft_adapters`.
    """
    assert spec.model.lora is not None
    number = _answer(spec).get("adapters")
    if isinstance(number, int):
        return number
    return peft_adapters(shape, spec.model.lora.rank, adapts_experts=adapts_experts)


def adapter_fault(spec: RunSpec) -> str | None:
    """Why the run's adapters cannot be made. None: they can, or peft cannot be asked here."""
    fault = _answer(spec).get("fault")
    return None if fault is None else str(fault)


@fact
def _answer(spec: RunSpec) -> Mapping[str, Any]:
    """The answer of the trainer's program; empty where every layer's size is known without it, or it cannot be asked."""
    lora = spec.model.lora
    shape = spec.model.architecture
    program = PROGRAMS.get(spec.backend.name)  # type: ignore[call-overload]  # a plugin's name has none
    if lora is None or program is None or is_megatron(spec):
        return {}
    is_dense = shape is not None and shape.num_experts is None and not shape.recurrent_layers
    if lora.target_modules is None and is_dense:
        return {}
    directory = local_directory(model_place(spec.model), Path(spec.outputs))
    if directory is None:
        return {}
    python = trainer_python(spec)
    return answer_of(program, directory, lora.model_dump_json(), python=python) or {}
