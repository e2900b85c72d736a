"""The section `backend` without the engine: runtime, attention and parallelism."""

from __future__ import annotations

from xp.fields import skyrl
from xp.fields.field import LEFT_OUT, OWN, Column, Field, Native, by_xp
from xp.fields.shared import has_kl, has_lora, is_colocated, is_megatron, is_on_cpu
from xp.fields.skyrl import (
    REMOVE_PADDING,
    Keys,
    can_pack,
    fsdp_keys,
    is_packed,
    megatron_keys,
    not_on_cpu,
    optimizer_keys,
    roles,
    trained,
)
from xp.fields.trl import distributed_type, is_sharded, world_size
from xp.spec import Attention, Estimator, RunSpec, Strategy


# TRL
def _trl_strategy(spec: RunSpec) -> str:
    if world_size(spec) == 1:
        return "nothing: one process holds the whole model"
    return f"accelerate launch, distributed_type={distributed_type(spec)}"


def _refused_strategy(spec: RunSpec) -> str | None:
    if is_megatron(spec):
        return "TRL has no Megatron; set fsdp2 or ddp, or backend=skyrl or slime"
    if has_lora(spec) and is_sharded(spec):
        return (
            "xp merges adapters for the engine process by process, which needs whole weights; set ddp with"
            " model.lora"
        )
    return None


def _offload(name: str, note: str, proof: str) -> Column:
    """Column of a part that FSDP2 offloads with the parameters; `proof`: of the note."""
    return Column(
        implemented_by="fsdp_offload_params",
        note_if=lambda s: s.backend.parallel.offload_parameters,
        note=note,
        refuse_if=lambda s: (
            getattr(s.backend.parallel, name) and not s.backend.parallel.offload_parameters
        ),
        refuse="FSDP2 offloads all state or nothing; set backend.parallel.offload_parameters=true too, or this false",
        proof={note: proof, "all state or nothing": "trl::fsdp2_moves_all_state_or_none"},
    )


def _of_one_rank(neutral: str) -> Column:
    """Column of a part of parallelism that splits the model."""
    refuse = f"TRL's GRPOTrainer is data-parallel only; set {neutral}, or backend=skyrl or slime"
    return Column(refuse=refuse, proof="trl::only_data_is_divided")


# SkyRL
def _attention(spec: RunSpec) -> str | None:
    shape = spec.model.architecture
    # Sinks: skyrl 0.4.0, workers/model_wrapper.py `attn_implementation`; transformers 5.8, modeling_gpt_oss.py.
    if shape is not None and shape.model_type == "gpt_oss" and not is_megatron(spec):
        return (
            "SkyRL loads a model under FSDP2 with FlashAttention 2 or PyTorch's kernel, and transformers has neither"
            f" for the attention of model={spec.model.name}; use backend=trl"
        )
    if spec.backend.attention is Attention.FLASH:
        if is_on_cpu(spec):
            return "FlashAttention needs a GPU; set sdpa on hardware=cpu"
        return None
    if is_megatron(spec):
        return "SkyRL's Megatron has flash or TransformerEngine's own; set flash"
    return None


def _attention_keys(spec: RunSpec) -> Native:
    """Keys of the kernel, and of the episodes of a micro-batch as one sequence without padding."""
    return {
        "trainer.flash_attn": spec.backend.attention is Attention.FLASH,
        REMOVE_PADDING: can_pack(spec),
    }


def _attention_note(spec: RunSpec) -> str:
    if spec.backend.attention is not Attention.FLASH or can_pack(spec):
        return ""
    return "Episodes of a micro-batch are padded to the longest of it, since this network cannot read them packed."


def _no_context(spec: RunSpec) -> str | None:
    """Returns why a sequence cannot be split over ranks; None if it can, or need not.

    Source: skyrl 0.4.0, workers/model_wrapper.py `forward` and train/utils/utils.py `validate_megatron_cfg`.
    """
    if spec.backend.parallel.context == 1:
        return None
    if is_on_cpu(spec):
        return not_on_cpu("set 1")
    if is_packed(spec):
        return None
    if can_pack(spec):
        return f"SkyRL splits sequences only without padding; leave {REMOVE_PADDING} out, or set 1"
    if spec.backend.attention is not Attention.FLASH:
        return (
            "SkyRL splits sequences only without padding, and removes it for FlashAttention; set 1"
        )
    return f"SkyRL splits sequences only without padding, and model={spec.model.name} is trained with it; set 1"


def _skyrl_strategy(spec: RunSpec) -> str | None:
    if spec.backend.parallel.strategy is Strategy.DDP:
        return "SkyRL has no ddp; set fsdp2, which has the same mathematics"
    if is_on_cpu(spec) and is_megatron(spec):
        return not_on_cpu("set fsdp2")
    return None


def _context(spec: RunSpec) -> Native:
    """Keys of Megatron's context parallelism, or of Ulysses under FSDP2."""
    if is_megatron(spec):
        ulysses = 1
    else:
        ulysses = spec.backend.parallel.context
    keys: Keys = {f"trainer.{role}.sequence_parallel_size": ulysses for role in roles(spec)}
    return keys | megatron_keys(spec, "context_parallel_size", spec.backend.parallel.context)


def _stage_layers(end: str) -> Column:
    """Column of the layers of a pipeline's first or last stage."""
    key = f"transformer_config_kwargs.num_layers_in_{end}_pipeline_stage"

    def keys(spec: RunSpec) -> Native:
        number = getattr(spec.backend.parallel, f"{end}_stage_layers")
        if number is None:
            return {}
        return megatron_keys(spec, key, number)

    return Column(keys)


CPU_OPTIMIZER = (
    "optimizer_cpu_offload",
    "use_precision_aware_optimizer",
    "overlap_cpu_optimizer_d2h_h2d",
)
OPTIMIZER_KWARGS = f"{skyrl.MEGATRON[0]}.optimizer_config_kwargs"


def _cpu_optimizer(spec: RunSpec) -> Native:
    """Keys of Megatron's Adam on the host; SkyRL's default fraction of 0 would leave it on the accelerator."""
    is_on = spec.backend.parallel.cpu_optimizer
    keys: Keys = {f"{OPTIMIZER_KWARGS}.{name}": is_on for name in CPU_OPTIMIZER}
    keys[f"{OPTIMIZER_KWARGS}.optimizer_offload_fraction"] = 1.0 if is_on else 0.0
    return keys if is_megatron(spec) else {}


def _sharded(spec: RunSpec) -> str:
    if is_megatron(spec):
        return ""
    return "nothing: FSDP2 shards over all accelerators"


def _split(name: str) -> Column:
    """Column of the number of ranks that a model is split over."""
    key = f"{name}_model_parallel_size"
    return Column(
        lambda s: megatron_keys(s, key, getattr(s.backend.parallel, name)), implemented_by=_sharded
    )


NEVER_UNUSED = "SkyRL moves it only where engines are colocated; it stays on the accelerator."
BY_TURNS = "Policy and reference share accelerators: SkyRL moves each to the host while the other computes."


def _moved(spec: RunSpec) -> str:
    if not is_megatron(spec):
        return ""
    if is_colocated(spec):
        return "SkyRL's own moves between the phases of colocated engines"
    return "nothing: off"


def _has_reference(spec: RunSpec) -> bool:
    return has_kl(spec) or spec.algorithm.distill is not None


def _optimizer_note(spec: RunSpec) -> str:
    if is_colocated(spec):
        return ""
    if _has_reference(spec):
        return BY_TURNS
    if spec.backend.parallel.offload_optimizer:
        return NEVER_UNUSED
    return ""


def _reference_note(spec: RunSpec) -> str:
    is_moved = spec.backend.parallel.offload_reference
    if not _has_reference(spec):
        return ""
    if is_colocated(spec):
        if is_moved:
            return ""
        return "While colocated engines generate, SkyRL moves it there in any case."
    if is_moved and not is_megatron(spec):
        return ""
    return BY_TURNS


PARALLEL = (
    *by_xp(
        {
            "backend.name": "xp.lib.plugins",
            "backend.pins": "xp.checks.doctor",
            "backend.commits": "xp.planning.runtime",
            "backend.runtime": "xp.planning.runtime",
        }
    ),
    Field("backend.runtime.image", xp=Column(proof=OWN)),
    Field(
        "backend.convert_model",
        trl=Column(refuse="TRL trains the Hugging Face model itself; set it to false", proof=OWN),
        skyrl=Column(
            refuse="SkyRL loads the Hugging Face model itself; set it to false", proof=OWN
        ),
        # Hugging Face models lack the output layer of Slime's critic.
        slime=Column(
            refuse_if=lambda s: (
                s.algorithm.estimator is Estimator.GAE and not s.backend.convert_model
            ),
            refuse="Slime's critic starts from a Megatron checkpoint, not from a Hugging Face directory; set it to true",
            proof="slime::a_hugging_face_model_has_no_critics_head",
        ),
        xp="xp.backends.slime.control.render",
    ),
    Field(
        "backend.attention",
        trl=Column(
            implemented_by="transformers' own choice, which is sdpa",
            only=Attention.SDPA,
            refuse="no wheel of FlashAttention is published for the torch of TRL's lock; set sdpa",
            proof="trl::the_lock_has_no_flash_attention",
        ),
        # SkyRL packs sequences without padding only for FlashAttention.
        skyrl=Column(
            _attention_keys,
            note=_attention_note,
            refuse=_attention,
            proof={
                "are padded to the longest": "skyrl_media::a_whole_network_with_media_is_not_packed",
                "needs a GPU": OWN,
                "transformers has neither": "skyrl::fsdp2_has_no_attention_for_sinks",
                "TransformerEngine's own": "skyrl::megatrons_attention_is_flash_or_fused",
            },
        ),
        slime=Column(
            "--attention-backend",
            only=Attention.FLASH,
            refuse="Megatron has no attention of PyTorch's; set flash",
            proof="slime::megatrons_attention_is_not_pytorchs",
        ),
        xp=Column(proof="engines::flash_attention_needs_ampere"),
    ),
    Field(
        "backend.parallel.strategy",
        trl=Column(
            implemented_by=_trl_strategy,
            refuse=_refused_strategy,
            proof={"no Megatron": "trl::only_data_is_divided", "merges adapters": OWN},
        ),
        skyrl=Column(
            lambda s: {"trainer.strategy": "megatron" if is_megatron(s) else "fsdp"},
            refuse=_skyrl_strategy,
            proof={
                "not on hardware=cpu": OWN,
                "no ddp": "skyrl::its_strategies_are_fsdp_and_megatron",
            },
        ),
        slime=Column(
            implemented_by="--train-backend megatron",
            only=Strategy.MEGATRON,
            refuse="Slime trains with Megatron only; set megatron, or use backend=skyrl or trl",
            proof="slime::megatron_is_its_only_trainer",
        ),
    ),
    Field(
        "backend.parallel.tensor",
        trl=_of_one_rank("1"),
        skyrl=_split("tensor"),
        slime=Column(
            lambda s: {
                "--tensor-model-parallel-size": s.backend.parallel.tensor,
                # Required by experts under tensor parallelism; it also saves memory.
                "--sequence-parallel": s.backend.parallel.tensor > 1,
            }
        ),
    ),
    Field(
        "backend.parallel.pipeline",
        trl=_of_one_rank("1"),
        skyrl=_split("pipeline"),
        slime="--pipeline-model-parallel-size",
    ),
    Field(
        "backend.parallel.first_stage_layers",
        trl=_of_one_rank("null"),
        skyrl=_stage_layers("first"),
        slime="--decoder-first-pipeline-num-layers",
    ),
    Field(
        "backend.parallel.last_stage_layers",
        trl=_of_one_rank("null"),
        skyrl=_stage_layers("last"),
        slime="--decoder-last-pipeline-num-layers",
    ),
    Field(
        "backend.parallel.context",
        trl=_of_one_rank("1"),
        skyrl=Column(
            _context,
            refuse=_no_context,
            proof={
                "not on hardware=cpu": OWN,
                "splits sequences only without padding": "skyrl::padding_is_removed_for_flash_attention_alone",
            },
        ),
        slime="--context-parallel-size",
    ),
    Field(
        "backend.parallel.expert",
        trl=_of_one_rank("1"),
        skyrl=Column(
            lambda s: (
                megatron_keys(s, "expert_model_parallel_size", s.backend.parallel.expert)
                # Experts are not split: tensor parallelism is for the rest of the network.
                | megatron_keys(s, "expert_tensor_parallel_size", 1)
            ),
            implemented_by=_sharded,
        ),
        slime=Column(
            lambda s: {
                "--expert-model-parallel-size": s.backend.parallel.expert,
                # Without expert parallelism, experts are split like other layers.
                "--expert-tensor-parallel-size": 1
                if s.backend.parallel.expert > 1
                else s.backend.parallel.tensor,
            }
        ),
    ),
    Field(
        "backend.parallel.offload_parameters",
        trl=Column(
            implemented_by="fsdp_offload_params",
            refuse_if=lambda s: s.backend.parallel.offload_parameters and not is_sharded(s),
            refuse="only strategy=fsdp2 on two or more training processes offloads; set false",
            proof=OWN,
        ),
        skyrl=Column(
            lambda s: fsdp_keys(
                s, trained(s), {"cpu_offload": s.backend.parallel.offload_parameters}
            ),
            implemented_by=_moved,
            refuse_if=lambda s: is_megatron(s) and s.backend.parallel.offload_parameters,
            refuse="SkyRL moves Megatron's parameters only between phases, where engines are colocated; set it to false",
            proof="skyrl::megatron_moves_between_phases",
        ),
        slime=Column(
            refuse="Megatron keeps trained parameters on the accelerator; set it to false, and if memory is short"
            " backend.parallel.cpu_optimizer=true, or backend.parallel.tensor higher",
            proof="slime::all_of_the_training_goes_to_the_host_between_phases",
        ),
    ),
    Field(
        "backend.parallel.offload_optimizer",
        trl=_offload(
            "offload_optimizer",
            "FSDP2 offloads parameters, gradients and optimizer state together.",
            "trl::fsdp2_moves_all_state_or_none",
        ),
        skyrl=Column(
            lambda s: optimizer_keys(
                s, "offload_after_step", s.backend.parallel.offload_optimizer and is_colocated(s)
            ),
            note=_optimizer_note,
            refuse_if=lambda s: (
                is_megatron(s) and is_colocated(s) and not s.backend.parallel.offload_optimizer
            ),
            refuse="SkyRL always moves Megatron's optimizer state to the host while colocated engines generate; set true",
            proof={
                "only where engines are colocated": "skyrl::unused_models_go_to_the_host",
                "share accelerators": "skyrl::unused_models_go_to_the_host",
                "always moves": "skyrl::megatron_moves_between_phases",
            },
        ),
        slime=Column(
            implemented_by=lambda s: "--colocate" if is_colocated(s) else LEFT_OUT,
            note_if=lambda s: is_colocated(s) and not s.backend.parallel.offload_optimizer,
            note="With the rest of training, it goes to the host while colocated engines generate.",
            refuse_if=lambda s: s.backend.parallel.offload_optimizer and not is_colocated(s),
            refuse="Slime moves optimizer state only where engines are colocated; set it to false, or"
            " backend.parallel.cpu_optimizer=true",
            proof={
                "With the rest": "slime::all_of_the_training_goes_to_the_host_between_phases",
                "only where engines are colocated": "slime::all_of_the_training_goes_to_the_host_between_phases",
            },
        ),
    ),
    Field(
        "backend.parallel.cpu_optimizer",
        trl=Column(
            refuse="TRL's FSDP2 moves parameters, gradients and Adam together; set it to false, and"
            " backend.parallel.offload_parameters=true",
            proof="trl::fsdp2_moves_all_state_or_none",
        ),
        skyrl=Column(
            _cpu_optimizer,
            implemented_by=lambda s: "" if is_megatron(s) else "nothing: off",
            refuse_if=lambda s: s.backend.parallel.cpu_optimizer and not is_megatron(s),
            refuse="FSDP2 moves parameters, gradients and Adam together; set it to false, and"
            " backend.parallel.offload_parameters=true",
            proof="skyrl::fsdp2_moves_all_state_or_none",
        ),
        slime=Column(  # The fraction's default is 1.
            (
                "--optimizer-cpu-offload",
                "--overlap-cpu-optimizer-d2h-h2d",
                "--use-precision-aware-optimizer",
            )
        ),
    ),
    Field(
        "backend.parallel.offload_reference",
        trl=_offload(
            "offload_reference",
            "FSDP2 offloads the reference together with the policy.",
            "trl::fsdp2_moves_the_reference_as_the_policy",
        ),
        skyrl=Column(
            lambda s: fsdp_keys(s, ("ref",), {"cpu_offload": s.backend.parallel.offload_reference}),
            implemented_by=_moved,
            note=_reference_note,
            proof="skyrl::unused_models_go_to_the_host",
        ),
        slime=Column(
            implemented_by="the weights that Slime swaps in for its forward",
            note_if=lambda s: not s.backend.parallel.offload_reference,
            note="Slime always keeps the reference in the host's memory.",
            proof="slime::the_reference_is_in_the_hosts_memory",
        ),
    ),
)
