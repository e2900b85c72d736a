"""Rows of `seed` and the section `model`."""

from __future__ import annotations

from xp.planning.rows import Pin, Row
from xp.planning.shared_rows import SEED_OF_TURNS, has_media, network_fields
from xp.spec import DType, EngineName

HEAD = "lm_head"
OTHER_HEADS = (
    "inkling_text",
    "llama4_text",
    "mllama_text_model",
    "modernbert-decoder",
    "recurrent_gemma",
    "xlstm",
)
"""Families whose head TRL 1.16 computes wrongly, or not at all (trl/trainer/utils.py `add_fused_lm_head`)."""
NOISE = "Where a step is one update without an importance correction, the policy before the update is the one with dropout."
NOT_TRIED_MEDIA = (
    "Not tried: vLLM on accelerators with a model that has parts for pictures. On a CPU it takes Gemma 4's weights after"
    " each update; for Qwen3-VL, Qwen3.5 and Gemma 3, the names that TRL sends are those that vLLM maps."
)
ADAPTERS = (
    "TRL sends vLLM merged weights in bfloat16, which lack small updates. Adapters of the start are trained on if they"
    " have these settings, else merged."
)

MODEL = (
    Row("seed", lambda s: {"seed": s.seed, "data_seed": s.seed}, note=SEED_OF_TURNS),
    Row(
        "model.path",
        implemented_by="AutoModelForCausalLM.from_pretrained",
        refuse_if=lambda s: network_fields(s).get("model_type") in OTHER_HEADS,
        note=lambda s: (
            NOT_TRIED_MEDIA if s.backend.engine.name is EngineName.VLLM and has_media(s) else ""
        ),
        refuse="TRL's log-probabilities lack this family's own scale, cap or layer at the head; use backend=skyrl",
    ),
    Row(
        "model.dtype",
        lambda s: {"bf16": s.model.dtype is DType.BFLOAT16, "fp16": False},
        implemented_by="torch_dtype=float32 for the weights",
        note="Trained weights are stored in float32, frozen ones (LoRA) in this type; the computation uses this type.",
    ),
    Row("model.architecture", implemented_by="the model's own config.json"),
    Row(
        "model.router_replay",
        refuse="TRL cannot replay the engine's choice of experts; set false, or use backend=skyrl or slime",
    ),
    Row(
        "model.lora",
        implemented_by="peft_config=None",
        note=lambda s: (
            ADAPTERS if s.model.lora is not None and s.model.dtype is not DType.FLOAT32 else ""
        ),
    ),
    Row("model.lora.rank", implemented_by="LoraConfig.r"),
    Row("model.lora.alpha", implemented_by="LoraConfig.lora_alpha"),
    Row(
        "model.lora.dropout",
        implemented_by="LoraConfig.lora_dropout, which xp sets again after disable_dropout=True",
        note=lambda s: NOISE if s.model.lora is not None and s.model.lora.dropout > 0 else "",
        refuse_if=lambda s: (
            s.model.lora is not None
            and s.model.lora.dropout > 0
            and s.model.lora.target_modules is None
            and bool(network_fields(s).get("num_experts"))
        ),
        refuse="peft has no dropout on experts, which target_modules=null adapts; set 0, or name layers of attention in"
        " model.lora.target_modules",
    ),
    Row(
        "model.lora.target_modules",
        implemented_by="LoraConfig.target_modules, null being all-linear",
        refuse_if=lambda s: (
            s.model.lora is not None and HEAD in (s.model.lora.target_modules or ())
        ),
        refuse=f"TRL never trains an adapter on the head ({HEAD}); remove it, or set null for every other linear layer",
    ),
)


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
FIXED = Row("", {key: pin.value for key, pin in PINS.items()})
