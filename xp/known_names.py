"""Answers names that users bring from the trainers' own scripts and tutorials with xp's name for the same thing."""

from __future__ import annotations

from collections.abc import Sequence

OPTION_ALIASES = {
    ("env", "generalreasoning/whodunit"): "whodunit",
    ("env", "generalreasoning/whodunit_mini"): "whodunit_mini",
    ("env", "generalreasoning/ctf"): "ctf",
}

FOREIGN = {
    # SkyRL
    "trainer.epochs": "training.num_steps counts rollout steps (epochs x tasks / training.prompts_per_step)",
    "trainer.train_batch_size": "training.prompts_per_step",
    "trainer.policy_mini_batch_size": "training.updates_per_step (prompts_per_step / mini-batch)",
    "trainer.policy.optimizer_config.lr": "training.learning_rate",
    "trainer.algorithm.advantage_estimator": "algorithm.estimator, which algorithm=NAME chooses",
    "trainer.algorithm.policy_loss_type": "algorithm.policy_loss and .ratio_level, which algorithm=NAME chooses",
    "trainer.critic.model.path": "algorithm=ppo; its critic starts from the policy's own weights",
    "trainer.algorithm.kl_loss_coef": "training.kl_coef",
    "trainer.max_prompt_length": "training.max_prompt_tokens",
    "trainer.policy.model.path": "model=NAME chooses it; model.path for one of your own",
    "trainer.ckpt_interval": "training.checkpoint_every",
    "trainer.logger": "tracking=[wandb]; the console always gets its log",
    "generator.n_samples_per_prompt": "training.group_size",
    "generator.max_turns": "env.max_turns",
    "generator.sampling_params.temperature": "training.temperature",
    "generator.sampling_params.max_generate_length": "training.max_tokens_per_turn",
    "generator.inference_engine.num_engines": "hardware=NAME; each engine has backend.engine.tensor_parallel of them",
    "trainer.placement.policy_num_gpus_per_node": "hardware=a100x4 chooses accelerator and count",
    "trainer.run_name": "name",
    "trainer.project_name": "project",
    "environment.env_class": "env=NAME, or env=graded env.env_class=NAME for one of skyrl_gym's",
    "data.train_data": "env.train chooses the tasks; preparation makes the files",
    "data.val_data": "env.held_out chooses the tasks; preparation makes the files",
    "OPENREWARD_UPLOAD_ROLLOUT": "upload_rollouts=true",
    "OPENREWARD_RUN_NAME": "name; trajectories are uploaded under the run's id",
    # Slime's tutorial
    "--model": "model=NAME",
    "--lr": "training.learning_rate",
    "--n-samples": "training.group_size",
    "--rollout-batch-size": "training.prompts_per_step",
    "--max-response-len": "training.max_tokens_per_turn",
    "--temperature": "training.temperature",
    "--num-rollout": "training.num_steps",
    "--max-tokens-per-gpu": "training.max_tokens_per_micro_batch",
    "--train-backend": "backend.parallel.strategy (Slime has megatron alone; fsdp2 is for backend=skyrl or trl)",
    "--actor-gpus": "hardware=h200x8 chooses all; backend.engine.accelerators are the engines' own",
    "--rollout-gpus": "backend.engine.accelerators, with backend.engine.placement=separate",
    "--tp": "backend.parallel.tensor",
    "--load": "resume=RUN goes on with a run",
    "--gradient-checkpointing": "training.gradient_checkpointing",
    "--context-parallel-size": "backend.parallel.context",
    "--use-kl-loss": "training.kl_coef above 0",
    "--kl-loss-coef": "training.kl_coef",
    "--advantage-estimator": "algorithm.estimator, .policy_loss and .ratio_level, which algorithm=NAME chooses",
    "--critic-lr": "training.critic_learning_rate",
    "--custom-advantage-function-path": "algorithm=custom algorithm.advantage_fn=package.module:function",
    # TRL
    "num_generations": "training.group_size",
    "learning_rate": "training.learning_rate",
    "max_steps": "training.num_steps",
    "beta": "training.kl_coef",
    "max_completion_length": "training.max_response_tokens",
    "max_tool_calling_iterations": "env.max_turns",
    "loss_type": "algorithm.loss_aggregation, and algorithm.policy_loss where it is cispo",
    "gamma": "algorithm.critic.discount, with algorithm=ppo",
    "lam": "algorithm.critic.gae_lambda, with algorithm=ppo",
    "cliprange_value": "algorithm.critic.value_clip, with algorithm=ppo",
    # variables of the public scripts
    "MODEL": "model=NAME",
    "NUM_GPUS": "hardware=a100x4 chooses accelerator and count",
    "LOGGER": "tracking=[wandb]; tracking=[] is the console alone",
    "RUN_NAME": "name",
    "MAX_TURNS": "env.max_turns",
    "ENV_NAME": "env=NAME",
    "recipe": "recipes=NAME",
    # an earlier key of xp's own
    "evaluation.num_episodes": "evaluation.num_tasks (of the held-out tasks) and evaluation.samples_per_task",
    # said by several
    "advantage_estimator": "algorithm=NAME chooses it",
    "adv_estimator": "algorithm=NAME chooses it",
    "algorithm.adv_estimator": "algorithm=NAME chooses it",
    "policy_loss_type": "algorithm=NAME chooses it",
}


ESTIMATOR_KEYS = (
    *("advantage_estimator", "adv_estimator", "algorithm.adv_estimator", "policy_loss_type"),
    *("trainer.algorithm.advantage_estimator", "trainer.algorithm.policy_loss_type", "--advantage-estimator"),
)
"""By which trainers choose what is an option of xp's group `algorithm`."""
ALGORITHMS = {
    "grpo": "grpo",
    "rloo": "rloo",
    "gspo": "gspo",
    "cispo": "cispo",
    "gae": "ppo",
    "ppo": "ppo",
    "reinforce++": "reinforce_pp",
    "reinforce_plus_plus": "reinforce_pp",
}
"""A trainer's word -> the option."""
BY_VALUE = {(key, word): f"algorithm={option}" for key in ESTIMATOR_KEYS for word, option in ALGORITHMS.items()} | {
    ("loss_type", "cispo"): "algorithm=cispo",
    ("importance_sampling_level", "sequence"): "algorithm=gspo, or algorithm.ratio_level=sequence",
}


def foreign_hint(text: str) -> str | None:
    """xp's word for a key of somebody else's script, or None. `text` may carry `=value`, or a value after a space."""
    key, _, value = text.replace(" ", "=", 1).lstrip("+~").partition("=")
    word = BY_VALUE.get((key, value.strip("'\""))) or FOREIGN.get(key)
    return f"in xp: {word}" if word else None


def option_alias(group: str, wanted: str, legal: Sequence[str]) -> str | None:
    """The legal option meant by `wanted`: itself, its other spelling, a known alias, or None."""
    if wanted in legal or wanted == "None":
        return wanted
    lowered = str(wanted).lower()
    matches = [name for name in legal if name.lower() == lowered]
    return matches[0] if matches else OPTION_ALIASES.get((group, lowered))
