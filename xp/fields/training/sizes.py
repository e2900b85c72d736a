"""The section `training`: the start, and the sizes of steps, updates and micro-batches."""

from __future__ import annotations

from collections.abc import Callable

from xp.fields.field import OWN, Column, Field, Native
from xp.fields.shared import (
    OF_EPISODES,
    has_correction,
    has_critic,
    is_ahead,
    is_colocated,
    is_megatron,
)
from xp.fields.skyrl import MICRO_BATCHES, Keys, trained
from xp.fields.slime import micro_batch, packing
from xp.fields.trl import accumulation, episodes_per_process, has_colocated_engine
from xp.spec import Estimator, Reference, RunSpec
from xp.spec.training import Unfinished
from xp.worker.skyrl_names import STEPS_KEY
from xp.worker.slime_names import SCORE_GROUP, STEPS_FLAG, train_program

ENDED = "nothing: a step's episodes have ended when the engine gets new weights"


NOT_AHEAD = (
    "colocated engines and the trainer use the same accelerators by turns, so nothing can be sampled in advance; set"
    " backend.engine.placement=separate (and backend.engine.accelerators), or training.max_staleness=0"
)


def whole_episodes(trainer: str, proof: str) -> Column:
    """Column of a trainer that sends no weights while episodes are played."""
    return Column(
        implemented_by=ENDED,
        only=Unfinished.WAIT,
        refuse=f"{trainer} sends new weights when all episodes of a step have ended; set wait, or use backend=skyrl",
        proof=proof,
    )


def steps_column(key: str, per_step: Callable[[RunSpec], int] = lambda _: 1) -> Column:
    """Column of the number of steps; `per_step`: number of the trainer's steps in one rollout step."""

    def steps(spec: RunSpec) -> Native:
        number = spec.training.num_steps
        return {} if number is None else {key: number * per_step(spec)}

    return Column(
        steps,
        implemented_by=lambda s: (
            "nothing: training.epochs is set" if s.training.num_steps is None else ""
        ),
    )


def epochs_column(key: str) -> Column:
    """Column of the epochs, by which the stage's program sets the number of steps when the number of tasks is known."""
    steps = (
        f"{key} is set by the stage's program: epochs x (tasks in the manifest // prompts_per_step)"
    )
    return Column(
        lambda s: {} if s.training.epochs is None else {key: None},
        implemented_by=lambda s: (
            "nothing: training.num_steps is set" if s.training.epochs is None else steps
        ),
    )


def _needs_groups(spec: RunSpec) -> str | None:
    """Why a task needs more than one episode, and the fix. None means that it does not."""
    algorithm = spec.algorithm
    distill = algorithm.distill
    has_baseline = distill is None or distill.beside_reward
    if has_baseline and algorithm.estimator in (*OF_EPISODES, Estimator.REINFORCE_PP_BASELINE):
        return (
            f"the baseline of algorithm.estimator={algorithm.estimator} is a mean over other episodes of the task;"
            " set 2 or more"
        )
    for name in ("dynamic_sampling", "zero_variance_filter"):
        if getattr(algorithm, name):
            return f"algorithm.{name} leaves groups with equal rewards out, and so every group of one episode; set 2 or more"
    if spec.env.scores_groups:
        return (
            "the group's rewards (env.group_reward_fn, env.judge) compare episodes; set 2 or more"
        )
    return None


def _single_episode(spec: RunSpec) -> str | None:
    if spec.training.group_size > 1:
        return None
    return _needs_groups(spec)


# TRL
def _wrong_reference(spec: RunSpec) -> str | None:
    if spec.model.lora is None or spec.training.kl_coef == 0:
        return None
    start = "with model.lora TRL's reference is the start without the adapters, not model.path"
    if spec.sft.data is not None and spec.training.reference is Reference.INITIAL:
        return f"{start}; set training.reference=sft, or training.kl_coef=0"
    if spec.sft.data is not None:
        return None
    if spec.training.initial_checkpoint is None:
        return None
    return f"{start}; set training.kl_coef=0, or make the checkpoint the model (model.path), or use backend=skyrl"


def _split_group(spec: RunSpec) -> str | None:
    """Returns why groups cannot be trained on: each process scores whole groups of its own episodes."""
    size = spec.training.group_size
    num_episodes = episodes_per_process(spec)
    if size == 1:
        return "TRL's GRPOTrainer needs groups of at least 2; set 2 or more, or use backend=skyrl or slime"
    needs = {
        "a group's reward": spec.env.scores_groups,
        "algorithm.zero_variance_filter": spec.algorithm.zero_variance_filter,
        "env.options.max_rows": spec.env.has_rows,
    }
    why = next((name for name, is_set in needs.items() if is_set), None)
    if num_episodes % size == 0 or why is None:
        return None
    return (
        f"a process has {num_episodes} episodes of a step, which are not whole groups of {size}, and {why} needs them all; make"
        " training.prompts_per_step divisible by the number of processes"
    )


def _accumulation(spec: RunSpec) -> Native:
    training = spec.training
    episodes = training.episodes_per_step // training.updates_per_step
    return accumulation(spec, episodes, training.micro_batch_size)


# SkyRL
SKYRL_REPLAYED = "A resumed run repeats the steps that were sampled in advance."
BY_GROUP = "An episode's age counts from its group's first token; keys and values of older weights stay in the cache."


def _fully_async(spec: RunSpec) -> Native:
    """Keys of SkyRL's fully asynchronous trainer, with the largest number of groups in flight."""
    ahead = spec.training.max_staleness
    keys: Keys = {"trainer.fully_async.enabled": ahead > 0}
    if not ahead:
        return keys
    return keys | {
        "trainer.fully_async.max_staleness_steps": ahead,
        "trainer.fully_async.num_parallel_generation_workers": spec.training.prompts_per_step
        * (ahead + 1),
        "trainer.fully_async.sample_full_batch": False,
        "trainer.fully_async.clear_kv_cache_on_weight_sync": False,
    }


def _skyrl_not_ahead(spec: RunSpec) -> str | None:
    """Returns why sampling during updates is impossible; None if it is possible, or not needed.

    Source: skyrl 0.4.0, train/fully_async_trainer.py `FullyAsyncRayPPOTrainer.__init__`.
    """
    if is_ahead(spec) and is_colocated(spec):
        return NOT_AHEAD
    if is_ahead(spec) and spec.training.updates_per_step > 1:
        return "SkyRL's fully asynchronous trainer makes one update per step; set training.updates_per_step=1"
    return None


def _is_packed(spec: RunSpec) -> bool:
    return spec.training.max_tokens_per_micro_batch is not None


def _no_packing(spec: RunSpec) -> str | None:
    """Returns why episodes cannot be packed by tokens; None if they can, or need not.

    Source: skyrl 0.4.0, megatron_worker.py `_pad_microbatch_to_size` and the KL and entropy terms of
    megatron_model_wrapper.py, which are means over a micro-batch's rows, then over the micro-batches.
    """
    names = [name for name in ("kl_coef", "entropy_coef") if getattr(spec.training, name) > 0]
    if not is_megatron(spec) or not _is_packed(spec) or not names:
        return None
    zero = " and ".join(f"training.{name}=0" for name in names)
    return (
        f"SkyRL's Megatron averages the terms of {' and '.join(names)} over micro-batches of different sizes, which it"
        f" fills up with empty rows, so that their strength depends on the packing; set null, or {zero}, or"
        " backend.parallel.strategy=fsdp2"
    )


# Slime
SLIME_REPLAYED = "A resumed run repeats the step that was sampled in advance."
START = "--load until the run has a checkpoint of its own, and --hf-checkpoint; null: --ref-load is the start"


def _slime_not_ahead(spec: RunSpec) -> str | None:
    """Returns why sampling during updates is impossible."""
    if spec.training.max_staleness > 1:
        return "Slime's train_async.py samples at most one step in advance; set 1, or use backend=trl or skyrl"
    return NOT_AHEAD if is_ahead(spec) and is_colocated(spec) else None


SIZES = (
    Field(
        "training.initial_checkpoint",
        trl=Column(
            implemented_by="AutoModelForCausalLM.from_pretrained, the reference's place being model.path; null: model.path",
            refuse=_wrong_reference,
            proof="trl::the_reference_of_adapters_is_the_start",
        ),
        skyrl=Column(implemented_by="trainer.policy.model.path; null: model.path"),
        # Source of the refusal: slime/backends/megatron_utils/hf_to_megatron has no critic's output layer.
        slime=Column(
            implemented_by=START,
            refuse_if=lambda s: (
                has_critic(s)
                and (s.training.initial_checkpoint is not None or s.sft.data is not None)
            ),
            refuse="Slime's critic starts from a Megatron checkpoint, not from a Hugging Face directory (a checkpoint, or"
            " the fine-tuned model of sft.data); make the checkpoint the model (model.path), or use backend=skyrl or"
            " algorithm=grpo",
            proof="slime::a_hugging_face_model_has_no_critics_head",
        ),
    ),
    Field(
        "training.num_steps",
        trl=steps_column("max_steps", per_step=lambda s: s.training.all_updates_per_step),
        skyrl=steps_column(STEPS_KEY),
        slime=steps_column(STEPS_FLAG),
    ),
    Field(
        "training.epochs",
        trl=epochs_column("max_steps"),
        skyrl=epochs_column(STEPS_KEY),
        slime=epochs_column(STEPS_FLAG),
    ),
    Field(
        "training.prompts_per_step",
        trl=Column(lambda s: {"generation_batch_size": s.training.episodes_per_step}),
        skyrl="trainer.train_batch_size",
        slime="--rollout-batch-size",
    ),
    Field(
        "training.generation_prompts",
        trl=Column(
            refuse="TRL's GRPOTrainer does not resample groups; set null, or use backend=skyrl or slime",
            proof="trl::groups_are_not_resampled",
        ),
        skyrl=Column(
            implemented_by="the loader of xp.backends.skyrl.worker.trainer",
            refuse_if=lambda s: s.training.generation_prompts is not None and is_ahead(s),
            refuse="with training.max_staleness, groups begin one by one, not in rounds; set null",
            proof=OWN,
        ),
        slime=Column(lambda s: {"--over-sampling-batch-size": s.training.prompts_per_round}),
        xp=Column(
            refuse_if=lambda s: (
                s.training.generation_prompts is not None and not s.algorithm.dynamic_sampling
            ),
            refuse="without algorithm.dynamic_sampling a step trains on all tasks that it plays; set null, or"
            " algorithm.dynamic_sampling=true",
            proof=OWN,
        ),
    ),
    Field(
        "training.group_size",
        trl=Column(
            "num_generations",
            refuse=_split_group,
            proof={"at least 2": "trl::a_group_has_two_episodes", "not whole groups": OWN},
        ),
        skyrl="generator.n_samples_per_prompt",
        slime=Column(
            lambda s: {
                "--n-samples-per-prompt": s.training.group_size,
                "--group-rm": s.env.scores_groups,
                "--custom-rm-path": SCORE_GROUP if s.env.scores_groups else None,
            }
        ),
        xp=Column(refuse=_single_episode, proof=OWN),
    ),
    Field(
        "training.updates_per_step",
        trl=Column(_accumulation),
        skyrl=Column(
            lambda s: {
                f"trainer.{role}_mini_batch_size": s.training.prompts_per_step
                // s.training.updates_per_step
                for role in trained(s)
            }
        ),
        slime=Column(
            lambda s: {
                "--num-steps-per-rollout": s.training.updates_per_step,
                "--global-batch-size": s.training.episodes_per_step // s.training.updates_per_step,
            }
        ),
    ),
    Field(
        "training.passes_per_step",
        trl="num_iterations",
        skyrl="trainer.update_epochs_per_batch",
        slime=Column(
            refuse="Slime uses a step's episodes once; set 1 and updates_per_step higher, or use backend=skyrl or trl",
            proof="slime::a_steps_episodes_are_used_once",
        ),
    ),
    Field(
        "training.max_staleness",
        trl=Column(
            implemented_by=lambda s: (
                "xp.backends.trl.worker.async_rollouts" if is_ahead(s) else "rollouts by turns"
            ),
            refuse_if=lambda s: is_ahead(s) and has_colocated_engine(s),
            refuse=NOT_AHEAD,
            proof=OWN,
        ),
        skyrl=Column(
            _fully_async,
            implemented_by=lambda s: (
                "xp.backends.skyrl.worker.async_rollouts" if is_ahead(s) else ""
            ),
            note_if=is_ahead,
            note=SKYRL_REPLAYED,
            refuse=_skyrl_not_ahead,
            proof={
                "colocated engines and the trainer": OWN,
                "sampled in advance": "skyrl::a_checkpoint_has_no_sampled_groups",
                "one update per step": "skyrl::sampling_ahead_has_one_update_per_step",
            },
        ),
        slime=Column(
            implemented_by=lambda s: f"Slime's {train_program(s.training.max_staleness)}",
            note_if=is_ahead,
            note=SLIME_REPLAYED,
            refuse=_slime_not_ahead,
            proof={
                "colocated engines and the trainer": OWN,
                "sampled in advance": "slime::the_step_in_advance_is_played_again",
                "at most one step": "slime::one_step_is_sampled_in_advance",
            },
        ),
        xp=Column(
            refuse_if=lambda s: is_ahead(s) and not has_correction(s),
            refuse="these episodes are of an older policy, and the update needs a correction for it; set"
            " algorithm.importance_correction=token_truncate (or another), algorithm.ratio_from=engine, or"
            " training.max_staleness=0",
            proof=OWN,
        ),
    ),
    Field(
        "training.unfinished",
        trl=whole_episodes("xp under TRL", OWN),
        skyrl=Column(
            implemented_by=lambda s: (
                "xp.backends.skyrl.worker.async_rollouts" if is_ahead(s) else ENDED
            ),
            note=BY_GROUP,
            note_if=lambda s: s.training.unfinished is Unfinished.CONTINUE,
            proof="skyrl::a_groups_age_is_of_its_start_and_the_cache_is_kept",
        ),
        slime=whole_episodes(
            "Slime's train_async.py", "slime::weights_are_sent_when_episodes_have_ended"
        ),
        xp=Column(
            refuse_if=lambda s: not is_ahead(s) and s.training.unfinished is not Unfinished.WAIT,
            refuse="with training.max_staleness=0 a step's episodes have ended when the engine gets new weights; set wait, or"
            " training.max_staleness above 0",
            proof=OWN,
        ),
    ),
    Field(
        "training.micro_batch_size",
        trl="per_device_train_batch_size",
        # 1 if episodes are packed by tokens, since SkyRL checks the unused number.
        skyrl=Column(
            lambda s: dict.fromkeys(
                MICRO_BATCHES, 1 if _is_packed(s) else s.training.micro_batch_size
            ),
            note="Unused: episodes are packed by tokens.",
            note_if=_is_packed,
            proof="skyrl::micro_batches_of_tokens_ignore_the_size",
        ),
        slime=Column(lambda s: micro_batch(s.training)),
    ),
    Field(
        "training.max_tokens_per_micro_batch",
        trl=Column(
            refuse="TRL's micro-batches count episodes; set it to null and use training.micro_batch_size",
            proof="trl::micro_batches_count_episodes",
        ),
        skyrl=Column(
            "trainer.max_tokens_per_microbatch",
            lambda tokens: tokens or -1,
            note="An episode that is longer gets a micro-batch of its own.",
            note_if=_is_packed,
            refuse=_no_packing,
            proof={
                "of its own": "skyrl::a_long_episode_is_alone_in_its_micro_batch",
                "different sizes": "skyrl::megatrons_terms_are_means_of_micro_batches",
            },
        ),
        slime=Column(lambda s: packing(s.training)),
    ),
)
