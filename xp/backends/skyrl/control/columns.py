"""Columns of SkyRL: those of the table of fields, and keys that are the same for every spec, with their reasons."""

from __future__ import annotations

from xp.fields.batch_shape import batch_shape
from xp.fields.field import Column, Pin
from xp.fields.sft import SFT
from xp.fields.shared import is_megatron
from xp.fields.skyrl import ALGORITHM, MEGATRON, Keys
from xp.fields.table import FIELDS, columns_of
from xp.spec import RunSpec
from xp.worker.skyrl_names import ENV_CLASS

METRICS = "xp writes the metrics and the trajectories"
TRUNCATION = (
    "the Episode determines truncation; set algorithm.mask_truncated or env.reward.nonterminal"
)
TURNS = "a turn is one message, which ends at the model's own end of turn"
PINS = {
    "environment.env_class": Pin(ENV_CLASS, "the environments are xp's"),
    "trainer.logger": Pin("console", f"{METRICS}; set tracking"),
    **dict.fromkeys(
        (
            "trainer.enable_ray_gpu_monitor",
            "generator.inference_engine.enable_ray_prometheus_stats",
            "trainer.dump_data_batch",
            "trainer.dump_eval_results",
        ),
        Pin(False, METRICS),
    ),
    **dict.fromkeys(
        (
            "trainer.num_logger_eval_samples",
            "trainer.num_logger_train_samples",
            "trainer.print_example_interval",
        ),
        Pin(-1, METRICS),
    ),
    "generator.eval_n_samples_per_prompt": Pin(
        1, "evaluation.samples_per_task repeats the held-out tasks"
    ),
    "trainer.resume_mode": Pin("latest", "resume=RUN continues a run"),
    "data.dataloader.num_workers": Pin(0, "the tasks are read in the trainer's process"),
    "trainer.algorithm.advantage_batch_normalize": Pin(False, "set algorithm.advantage_scale"),
    "trainer.update_ref_every_epoch": Pin(
        False, "the tasks of a whole run are one epoch, so it would never happen"
    ),
    "trainer.recompute_old_logprobs_per_minibatch": Pin(
        True,
        "old log-probabilities come from the micro-batches of the update, so that the first ratio is 1",
    ),
    "trainer.placement.colocate_policy_ref": Pin(
        True, "the planner places both on the same accelerators"
    ),
    "generator.apply_overlong_filtering": Pin(False, TRUNCATION),
    "generator.zero_reward_on_non_stop": Pin(False, TRUNCATION),
    "generator.batched": Pin(False, "xp plays episodes one by one"),
    "generator.use_conversation_multi_turn": Pin(True, TURNS),
    # The template's own end of turn is part of the environment's reply, as after a truncated turn.
    "generator.append_eos_token_after_stop_str_in_multi_turn": Pin(False, TURNS),
    # A custom template keeps only the last step's reward.
    "generator.chat_template.name_or_path": Pin(
        None, "xp renders the chat template; set model.template"
    ),
    **{
        f"generator.{sampling}.{key}": pin
        for sampling in ("sampling_params", "eval_sampling_params")
        for key, pin in {
            "repetition_penalty": Pin(
                1.0, "SkyRL does not send it to the engine; set training.repetition_penalty"
            ),
            "logprobs": Pin(1, "xp compares the engine's log-probabilities with the trainer's"),
        }.items()
    },
    "generator.eval_sampling_params.min_p": Pin(
        0.0, "held-out episodes are of the model's own distribution"
    ),
    "generator.eval_sampling_params.additional_kwargs": Pin(
        None, "tokens are drawn in the same way on every trainer"
    ),
    # SkyRL's only engine, also in the rehearsal, where xp's stub implements its interface.
    "generator.inference_engine.backend": Pin("vllm", "it is SkyRL's only engine"),
    "generator.inference_engine.run_engines_locally": Pin(True, "the engines run in the job"),
    # vLLM's default is without the temperature.
    "generator.inference_engine.engine_init_kwargs.logprobs_mode": Pin(
        "processed_logprobs", "the trainer's log-probabilities are with the temperature"
    ),
    "generator.inference_engine.weight_sync_backend": Pin(
        "nccl", "xp's engine key and time limits are for this transfer"
    ),
    **dict.fromkeys(
        (f"generator.inference_engine.{kind}_parallel_size" for kind in ("pipeline", "data")),
        Pin(1, "the planner counts backend.engine.tensor_parallel accelerators for an engine"),
    ),
}


# Under FSDP2, xp.backends.skyrl.worker.workers turns the model's own dropout off.
DROPOUTS = {
    f"{place}.transformer_config_kwargs.{name}_dropout": 0.0
    for name in ("attention", "hidden")
    for place in MEGATRON
}
_FIXED = Column(
    lambda s: {key: pin.value for key, pin in PINS.items()} | (DROPOUTS if is_megatron(s) else {}),
)


def _fixed(spec: RunSpec) -> Keys:
    """Keys of a fine-tuning on all accelerators, with no engine, no reference and the loss of temperature 1."""
    return {
        f"{ALGORITHM}.temperature": 1.0,
        f"{ALGORITHM}.use_kl_loss": False,
        f"{ALGORITHM}.use_kl_in_reward": False,
        f"{ALGORITHM}.use_entropy_loss": False,
        "trainer.fully_async.enabled": False,
        "trainer.placement.colocate_all": False,
        "trainer.placement.policy_num_nodes": batch_shape(spec).num_nodes,
        "trainer.placement.policy_num_gpus_per_node": batch_shape(spec).per_node,
    }


COLUMNS = {"": _FIXED, **columns_of(FIELDS, "skyrl")}
SFT_COLUMNS = {"": Column(_fixed), **columns_of(SFT, "skyrl")}
"""Key path -> column; of the stage `sft` alone."""
