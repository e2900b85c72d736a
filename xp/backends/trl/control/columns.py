"""Columns of TRL: those of the table of fields, and arguments that are the same for every spec, with their reasons."""

from __future__ import annotations

from xp.fields.field import Column, Pin
from xp.fields.sft import SFT
from xp.fields.table import FIELDS, columns_of

LOGS = "xp writes the metrics, one line per rollout step, and the progress bar"
PINS = {
    "report_to": Pin("none", f"{LOGS}; set tracking"),
    "logging_strategy": Pin("steps", LOGS),
    "logging_steps": Pin(1, LOGS),
    "logging_nan_inf_filter": Pin(False, LOGS),
    "disable_tqdm": Pin(True, LOGS),
    "eval_strategy": Pin("no", "xp plays the evaluations; set evaluation.every"),
    "mask_truncated_completions": Pin(
        False, "the Episode determines truncation; set algorithm.mask_truncated"
    ),
    "shuffle_dataset": Pin(False, "the order of tasks is xp's; set training.shuffle"),
    "remove_unused_columns": Pin(False, "a prompt names its task"),
    "dataloader_num_workers": Pin(0, "prompts are read in the trainer's process"),
    # The base model's dropout; xp.backends.trl.worker.lora sets the adapters' own afterwards.
    "disable_dropout": Pin(True, "the ratio is between two passes of the same network"),
    # TRL's default is the model's own factor.
    "router_aux_loss_coef": Pin(0.0, "the loss is the same on every trainer"),
    # Every trained parameter is used in every forward pass.
    "ddp_find_unused_parameters": Pin(False, "every parameter is used"),
}
_FIXED = Column({key: pin.value for key, pin in PINS.items()})

COLUMNS = {"": _FIXED, **columns_of(FIELDS, "trl")}
SFT_COLUMNS = columns_of(SFT, "trl")
"""Key path -> column; of the stage `sft` alone."""
