"""The section `model`; the network is in architecture.py."""

from __future__ import annotations

from xp.fields import skyrl, slime_media
from xp.fields.field import OWN, Column, Field, Native
from xp.fields.shared import (
    family_without_grid,
    has_critic,
    has_media,
    is_colocated,
    is_megatron,
    is_on_cpu,
    model_config,
    network_fields,
    uses_vllm,
)
from xp.fields.skyrl import Keys, fsdp_keys, is_multimodal, is_text_taken_out, roles
from xp.fields.slime_media import media_note
from xp.lib.text import word_list
from xp.spec import DType, RunSpec
from xp.spec.env import PromptSource
from xp.worker.adapters import ENGINE_RANKS, NOT_TIED, TIED
from xp.worker.places import start_place


def _tied_adapters(spec: RunSpec) -> str | None:
    model = spec.model
    if model.lora is None or model.architecture is None or not model.architecture.tied_embeddings:
        return None
    if {*TIED}.isdisjoint(model.lora.target_modules or ()):
        return None
    return NOT_TIED


# TRL
HEAD = "lm_head"
OTHER_HEADS = word_list("""
    inkling_text llama4_text mllama_text_model modernbert-decoder recurrent_gemma xlstm
""")
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

# SkyRL
LORA = "trainer.policy.model.lora"
FROZEN_EXPERTS = (
    "peft 0.18 in SkyRL adapts linear layers alone, so experts and router stay frozen; for them use backend=trl or"
    " strategy=megatron."
)
MERGED = (
    "Not tried: Megatron-Bridge's merge of adapters in bfloat16, for the engine and the published model, which may lose"
    " small updates."
)
MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Families of which peft adapts no out_proj (peft/tuners/tuners_utils.py `_check_lora_target_modules_mamba`)."""
OUTSIDE_TEXT = r"(?!.*\b(language_model|text_model)\b).*"
"""Pattern for peft of the modules outside the text network of a checkpoint with media, by transformers' names."""
READ_PADDING = word_list("""
    deepseek_v32 deepseek_v4 glm_moe_dsa llama4_text recurrent_gemma rwkv
""")
"""Families for which transformers 5.16 computes other log-probabilities with padding on the left; the indexer of sparse
attention then also reads the tokens after its own."""


def _text_alone(spec: RunSpec) -> Native:
    """Keys of a checkpoint with media: the engine leaves those parts out, and Megatron does where it can."""
    is_taken_out = is_text_taken_out(spec)
    return {
        "trainer.policy.language_model_only": is_taken_out,
        "trainer.ref.language_model_only": is_taken_out,
        f"{skyrl.ENGINE}.language_model_only": is_multimodal(spec) and spec.model.images is None,
    }


def _media_note(spec: RunSpec) -> str:
    if not is_multimodal(spec) or is_text_taken_out(spec):
        return ""
    if is_megatron(spec):
        return "Megatron builds the whole network; xp has not tried this family with it."
    return "The whole network is loaded; its parts for pictures and sound are frozen."


SKYRL_PICTURES = "xp.backends.skyrl.worker.pictures, in place of SkyRL's own generator"
NOT_TRIED_PICTURES = "Not tried: pictures on accelerators."


def _pictures_note(spec: RunSpec) -> str:
    if spec.model.images is None:
        return ""
    notes = []
    if not uses_vllm(spec):
        notes.append("Each sampled token is a pass over its whole conversation, with its pictures.")
    if not is_on_cpu(spec):
        notes.append(NOT_TRIED_PICTURES)
    return " ".join(notes)


def _no_readers(spec: RunSpec) -> str | None:
    """Returns why the pictures of any trainer's run would not be read; None if they are, or need not be."""
    if spec.model.images is None:
        return None
    if model_config(spec) is not None and not is_multimodal(spec):
        return f"{spec.model.name} reads text alone; choose a model with a vision part, or set model.images=null"
    for name, member in spec.env.members.items():
        if member.judge is not None and not member.judge.model.images:
            return (
                f"the judge of env.members.{name} gets no images; set either its judge.model.images=true if its model"
                " reads them, or its judge=null, or model.images=null"
            )
    return None


def _no_pictures(spec: RunSpec) -> str | None:
    """Returns why TRL's run has no pictures; None if it has, or need not."""
    if spec.model.images is None:
        return None
    family = family_without_grid(spec)
    if family is not None and uses_vllm(spec):
        return f"xp gives vLLM no pictures of {family}; set backend.engine.name=transformers, or model.images=null"
    runtime = spec.backend.runtime
    is_locked = runtime.python is None and runtime.image is None and not is_on_cpu(spec)
    if is_locked and uses_vllm(spec) and not is_colocated(spec):
        return (
            "the locked vLLM 0.29 has no server that takes tokens with images; set either"
            " backend.engine.placement=colocated and backend.engine.accelerators=null, or backend.runtime.python=PATH of"
            " a Python with vLLM 0.30 or 0.31, or model.images=null"
        )
    if spec.backend.engine.speculative is not None:
        return (
            "vLLM could sample the token of a picture, since it refuses biases together with guessed tokens; set"
            " backend.engine.speculative=null, or model.images=null"
        )
    if spec.algorithm.distill is not None and spec.algorithm.distill.url is not None:
        return "xp gives a teacher's server no pictures; set either algorithm.distill.url=null, or model.images=null"
    return None


def _pictures(spec: RunSpec) -> Native:
    images = spec.model.images
    keys: Keys = {"generator.vision_language_generator": False}
    if images is not None and not skyrl.has_stub(spec):
        keys[f"{skyrl.ENGINE}.engine_init_kwargs.limit_mm_per_prompt"] = images.vllm_limits
    return keys


def _no_skyrl_pictures(spec: RunSpec) -> str | None:
    """Returns why SkyRL's run has no pictures; None if it has, or need not."""
    if spec.model.images is None:
        return None
    if is_megatron(spec):
        return "xp gives SkyRL's Megatron no pictures; set backend.parallel.strategy=fsdp2, or model.images=null"
    if has_critic(spec):
        return "SkyRL's critic gets no pictures; use algorithm=grpo, or set model.images=null"
    family = family_without_grid(spec)
    if family is not None:
        return f"SkyRL's batches have pictures as patches with a grid, and those of {family} are others; use backend=trl"
    return None


def _dtype(spec: RunSpec) -> Native:
    is_bf16 = spec.model.dtype is DType.BFLOAT16
    precision = {
        "param_dtype": "bf16" if is_bf16 else "fp32",
        "reduce_dtype": "fp32",
        "buffer_dtype": "fp32",
    }
    return {
        "trainer.bf16": is_bf16,
        f"{skyrl.ENGINE}.model_dtype": spec.model.dtype.value,
        **fsdp_keys(
            spec, roles(spec), {f"mixed_precision.{key}": value for key, value in precision.items()}
        ),
    }


def _no_lora(spec: RunSpec) -> str | None:
    if spec.model.lora is None:
        return None
    if is_on_cpu(spec):
        return "SkyRL's adapters are not part of the rehearsal; set it to null on hardware=cpu"
    if has_critic(spec):
        return "SkyRL would train the critic's adapters on a random head that is never trained; set it to null"
    return None


def _rounded(spec: RunSpec) -> str:
    has_start = spec.sft.data is not None or spec.training.initial_checkpoint is not None
    if spec.model.lora is None or not (has_start or is_megatron(spec)):
        return ""
    if is_megatron(spec):
        return MERGED
    return "The start's adapters are merged, in bfloat16."


def _no_rank(spec: RunSpec) -> str | None:
    """Returns why the engine takes no adapter of this rank, for which SkyRL asks (inference_servers/utils.py
    `build_vllm_cli_args`); Megatron sends it merged weights."""
    lora = spec.model.lora
    if lora is None or is_megatron(spec) or lora.rank in ENGINE_RANKS:
        return None
    nearest = min(ENGINE_RANKS, key=lambda rank: abs(rank - lora.rank))
    legal = ", ".join(map(str, ENGINE_RANKS))
    return f"SkyRL gives the adapters to vLLM, which supports the ranks {legal}, not {lora.rank}; set {nearest}"


def _target_modules(spec: RunSpec) -> Native:
    if spec.model.lora is None:
        return {}
    modules = spec.model.lora.target_modules
    keys: Keys = {f"{LORA}.target_modules": "all-linear" if modules is None else list(modules)}
    if is_multimodal(spec) and not is_megatron(spec):
        keys[f"{LORA}.exclude_modules"] = OUTSIDE_TEXT
    return keys


def _freezes_experts(spec: RunSpec) -> bool:
    return (
        spec.model.lora is not None
        and not is_megatron(spec)
        and bool(network_fields(spec).get("num_experts"))
    )


def _router_replay(spec: RunSpec) -> Native:
    is_on = spec.model.router_replay
    key = "moe_enable_routing_replay"
    # The reference chooses its own experts, as on Slime. With Ray's executor, the engine can hang (SkyRL's check).
    keys: Keys = {f"{skyrl.ENGINE}.enable_return_routed_experts": is_on}
    if is_megatron(spec):
        keys |= {f"{skyrl.MEGATRON[0]}.{key}": is_on, f"{skyrl.MEGATRON[1]}.{key}": False}
    if is_on:
        keys[f"{skyrl.ENGINE}.distributed_executor_backend"] = "mp"
    return keys


def _no_router_replay(spec: RunSpec) -> str | None:
    """Returns why the engine's choice of experts cannot be replayed; None if it can, or need not."""
    if not spec.model.router_replay:
        return None
    if not is_megatron(spec):
        return "SkyRL replays the choice of experts under Megatron only; set backend.parallel.strategy=megatron"
    if spec.backend.engine.tensor_parallel > spec.trainer_accelerators:
        return "an engine must be on one machine then; lower backend.engine.tensor_parallel"
    live = [name for name, member in spec.env.members.items() if member.prompt is PromptSource.LIVE]
    if live:
        return (
            f"SkyRL needs a turn of the engine in each episode, which prompt=live of env.members.{live[0]} may lack;"
            " set false, or prompt=prepared there"
        )
    return None


MODEL = (
    Field("model.name", xp="xp.execution"),
    Field(
        "model.path",
        trl=Column(
            implemented_by="AutoModelForCausalLM.from_pretrained",
            refuse_if=lambda s: network_fields(s).get("model_type") in OTHER_HEADS,
            note=NOT_TRIED_MEDIA,
            note_if=lambda s: uses_vllm(s) and has_media(s),
            refuse="TRL's log-probabilities lack this family's own scale, cap or layer at the head; use backend=skyrl",
            proof="engines/architectures::trls_log_probabilities_are_the_models_own_or_the_plan_refuses_the_family",
        ),
        skyrl=Column(
            _text_alone,
            implemented_by="trainer.ref.model.path, and trainer.policy.model.path without an initial_checkpoint",
            note=_media_note,
            refuse_if=lambda s: (
                not is_megatron(s) and network_fields(s).get("model_type") in READ_PADDING
            ),
            refuse="SkyRL pads episodes on the left, which changes this family's log-probabilities; use backend=trl",
            proof={
                "The whole network is loaded": "skyrl_media::a_whole_network_with_media_is_not_packed",
                "pads episodes on the left": "trainers/skyrl_architectures::the_wrapper_is_the_model",
            },
        ),
        slime=Column(
            lambda s: {"--hf-checkpoint": start_place(s)},
            note=media_note,
            proof={
                "text network alone": "trainers/slime_media::slimes_own_class_has_the_text_alone",
                "has no loader": "trainers/slime_media::a_text_network_is_read_and_written_as_its_family",
                "part for pictures too": "trainers/slime_pictures::slimes_network_with_pictures_agrees_and_trains",
            },
        ),
    ),
    Field("model.revision", xp="xp.planning.stages"),
    Field(
        "model.dtype",
        trl=Column(
            lambda s: {"bf16": s.model.dtype is DType.BFLOAT16, "fp16": False},
            implemented_by="torch_dtype=float32 for the weights",
            note="Trained weights are stored in float32, frozen ones (LoRA) in this type; the computation uses this type.",
            proof=OWN,
        ),
        skyrl=Column(
            _dtype,
            note_if=lambda s: not is_on_cpu(s),
            note="Trained weights are stored in float32; the computation uses this type.",
            refuse_if=lambda s: not is_on_cpu(s) and s.model.dtype is not DType.BFLOAT16,
            refuse="SkyRL always computes in bfloat16 on accelerators; set bfloat16 (its FSDP keeps float32 master"
            " weights)",
            proof={
                "are stored in float32": "skyrl::weights_are_stored_in_float32",
                "always computes in bfloat16": "skyrl::it_computes_in_bfloat16",
            },
        ),
        slime=Column(
            {"--bf16": True},
            only=DType.BFLOAT16,
            refuse="Slime trains in bfloat16 with float32 main parameters; set bfloat16",
            proof="slime::it_trains_in_half_precision",
        ),
        xp=Column(proof="trl::bfloat16_needs_ampere"),
    ),
    Field("model.dialect", xp="xp.episode.dialects"),
    Field("model.max_context_tokens", slime="--sglang-context-length", xp="xp.fields"),
    Field(
        "model.chat_template",
        skyrl=Column(
            lambda s: {"generator.chat_template_kwargs": s.model.template_arguments},
            implemented_by="xp.episode.tokens; earlier turns stay as written",
        ),
        xp="xp.episode.tokens",
    ),
    Field("model.template", xp="xp.episode.tokens"),
    Field("model.tools_prompt", xp="xp.episode.tokens"),
    Field(
        "model.lora",
        trl=Column(
            implemented_by="peft_config=None",
            note=ADAPTERS,
            note_if=lambda s: s.model.lora is not None and s.model.dtype is not DType.FLOAT32,
            proof={
                "merged weights in bfloat16": "trainers/trl_lora::an_engine_gets_trls_weights_and_the_base_stays_bit_for_bit",
                "Adapters of the start": OWN,
            },
        ),
        # Rank 0 disables LoRA.
        skyrl=Column(
            lambda s: {f"{LORA}.rank": 0} if s.model.lora is None else {},
            note=_rounded,
            refuse=_no_lora,
            proof={
                "The start's adapters": OWN,
                "not part of the rehearsal": OWN,
                "random head": "skyrl::a_critics_adapters_leave_its_head_out",
            },
        ),
        slime=Column(
            refuse="Slime has no adapters; set it to null, or use backend=skyrl or trl",
            proof="slime::it_has_no_adapters",
        ),
        xp=Column(refuse=_tied_adapters, proof=OWN),
    ),
    Field(
        "model.lora.rank",
        trl=Column(implemented_by="LoraConfig.r"),
        skyrl=Column(
            f"{LORA}.rank",
            refuse=_no_rank,
            proof="skyrl::the_engine_is_asked_for_the_adapters_rank",
        ),
    ),
    Field(
        "model.lora.alpha",
        trl=Column(implemented_by="LoraConfig.lora_alpha"),
        # SkyRL takes a whole number.
        skyrl=Column(
            f"{LORA}.alpha",
            int,
            refuse_if=lambda s: (
                s.model.lora is not None and s.model.lora.alpha != int(s.model.lora.alpha)
            ),
            refuse="SkyRL needs a whole number; round it",
            proof="skyrl::alpha_is_a_whole_number",
        ),
    ),
    Field(
        "model.lora.dropout",
        trl=Column(
            implemented_by="LoraConfig.lora_dropout, which xp sets again after disable_dropout=True",
            note=NOISE,
            note_if=lambda s: s.model.lora is not None and s.model.lora.dropout > 0,
            refuse_if=lambda s: (
                s.model.lora is not None
                and s.model.lora.dropout > 0
                and s.model.lora.target_modules is None
                and bool(network_fields(s).get("num_experts"))
            ),
            refuse="peft has no dropout on experts, which target_modules=null adapts; set 0, or name layers of attention in"
            " model.lora.target_modules",
            proof={
                "the one with dropout": "trainers/trl_lora::adapters_have_their_dropout_in_an_update_and_none_before_it",
                "no dropout on experts": "trl::an_adapter_on_experts_has_no_dropout",
            },
        ),
        skyrl=f"{LORA}.dropout",
    ),
    Field(
        "model.lora.target_modules",
        trl=Column(
            implemented_by="LoraConfig.target_modules, and target_parameters for experts",
            note_if=lambda s: (
                s.model.lora is not None
                and s.model.lora.target_modules is None
                and network_fields(s).get("model_type") in MAMBA
            ),
            note="peft adapts no out_proj of layers of Mamba; they stay frozen.",
            refuse_if=lambda s: (
                s.model.lora is not None and HEAD in (s.model.lora.target_modules or ())
            ),
            refuse=f"TRL never trains an adapter on the head ({HEAD}); remove it, or set null for every other linear layer",
            proof={
                "no out_proj of layers of Mamba": "trl::peft_refuses_out_projections_of_mamba",
                "an adapter on the head": "trl::an_adapter_on_the_head_is_refused",
            },
        ),
        # Source of the names: megatron_worker.py `configure_lora`.
        skyrl=Column(
            _target_modules,
            note=FROZEN_EXPERTS,
            note_if=_freezes_experts,
            refuse_if=lambda s: (
                s.model.lora is not None
                and s.model.lora.target_modules is not None
                and is_megatron(s)
            ),
            refuse="SkyRL's Megatron names its layers linear_qkv, linear_proj, linear_fc1 and linear_fc2, not as Hugging"
            " Face; set null, which is all of them, or backend.parallel.strategy=fsdp2",
            proof={
                "linear layers alone": "skyrl::its_adapters_are_of_modules_alone",
                "names its layers": "skyrl::megatron_names_its_own_layers",
            },
        ),
    ),
    Field(
        "model.images",
        trl=Column(
            implemented_by="xp.worker.picture_passes, in each forward pass",
            note=_pictures_note,
            refuse=_no_pictures,
            proof={
                "xp gives": OWN,
                "a pass over": OWN,
                "Not tried": OWN,
                "guessed tokens": "engines::guessed_tokens_have_no_min_p",
                "locked vLLM": "trl::its_lock_has_no_server_of_tokens_with_pictures",
            },
        ),
        skyrl=Column(
            _pictures,
            implemented_by=lambda s: "" if s.model.images is None else SKYRL_PICTURES,
            note=NOT_TRIED_PICTURES,
            note_if=lambda s: s.model.images and not is_on_cpu(s),
            refuse=_no_skyrl_pictures,
            proof={
                "Not tried": OWN,
                "xp gives": OWN,
                "critic": "skyrl::a_critic_gets_no_pictures",
                "with a grid": "skyrl_pictures::a_picture_needs_a_grid",
            },
        ),
        slime=Column(
            slime_media.picture_flags,
            implemented_by=lambda s: "" if s.model.images is None else slime_media.PICTURES,
            note=slime_media.pictures_note,
            refuse=slime_media.no_pictures,
            proof={
                "one family": "slime::its_update_takes_pictures_of_one_family",
                "no head": "slime::a_critic_with_pictures_has_no_head",
                "decodes the tokens": "slime::its_sglang_encodes_tokens_with_pictures_again",
                "asks for --micro-batch-size 1": "slime::its_example_with_pictures_has_one_row_in_a_micro_batch",
                "xp gives a teacher": OWN,
                "xp gives fine-tuning": OWN,
                "converts the text network alone": OWN,
                "gives its server no pictures": OWN,
                "Not tried": OWN,
            },
        ),
        xp=Column(refuse=_no_readers, proof=OWN),
    ),
    Field(
        "model.train_vision",
        trl=Column(
            implemented_by="xp.worker.media.freeze_media",
            note_if=lambda s: (
                s.model.train_vision and uses_vllm(s) and not (is_on_cpu(s) and is_colocated(s))
            ),
            note="Not tried: an update of the vision part in vLLM on accelerators, or on its server.",
            proof=OWN,
        ),
        skyrl=Column(
            implemented_by="xp.worker.media.freeze_media",
            note_if=lambda s: s.model.train_vision and not is_on_cpu(s),
            note="Not tried: an update of the vision part in vLLM.",
            proof=OWN,
        ),
        slime=Column(
            refuse="xp freezes the vision part on Slime; set false, or use backend=trl or skyrl",
            proof=OWN,
        ),
    ),
    Field(
        "model.router_replay",
        trl=Column(
            refuse="TRL cannot replay the engine's choice of experts; set false, or use backend=skyrl or slime",
            proof="trl::it_knows_no_routed_experts",
        ),
        skyrl=Column(
            _router_replay,
            implemented_by=lambda s: "" if is_megatron(s) else "the model's own router",
            note_if=lambda s: s.model.router_replay and s.model.lora is not None,
            note="Not tried: the engine's choice of experts with adapters.",
            refuse=_no_router_replay,
            proof={
                "under Megatron only": "skyrl::experts_are_replayed_under_megatron_alone",
                "on one machine": "skyrl::experts_need_an_engine_of_one_machine",
                "a turn of the engine": OWN,
            },
        ),
        slime="--use-rollout-routing-replay",
    ),
    Field(
        "model.architecture",
        trl=Column(implemented_by="the model's own config.json"),
        skyrl=Column(implemented_by="the model's own config.json"),
        slime=Column(
            implemented_by="Megatron's flags of the network",
            # Of what xp.backends.slime.control.architecture refuses.
            proof={
                "is not on this machine": OWN,
                "xp writes no flags": OWN,
                "Slime loads the weights of": "slime::it_loads_the_families_of_its_table",
                "whole number": "slime::a_rotary_base_is_a_whole_number",
                "supports only": "slime::rotary_scaling_is_llama_3s_alone",
                "divides sigmoid scores": "slime::a_bias_of_experts_needs_sigmoid_scores",
                "scores a group": "slime::a_group_of_experts_is_scored_by_a_fixed_number",
            },
        ),
    ),
)
