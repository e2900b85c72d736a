"""Words of the public scripts and tutorials, and xp's for the same thing; xp.compose.known_names looks them up."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    # SkyRL
    "trainer.epochs": "training.epochs",
    "trainer.max_training_steps": "training.num_steps",
    "trainer.train_batch_size": "training.prompts_per_step",
    "trainer.policy.optimizer_config.lr": "training.learning_rate",
    "trainer.algorithm.kl_loss_coef": "training.kl_coef",
    "trainer.max_prompt_length": "training.max_prompt_tokens",
    "trainer.micro_forward_batch_size_per_gpu": "training.micro_batch_size",
    "trainer.micro_train_batch_size_per_gpu": "training.micro_batch_size",
    "trainer.ref.fsdp_config.cpu_offload": "backend.parallel.offload_reference",
    "trainer.policy.fsdp_config.cpu_offload": "backend.parallel.offload_parameters",
    "trainer.ckpt_interval": "training.checkpoint_every",
    "trainer.eval_interval": "evaluation.every",
    "trainer.eval_before_train": "evaluation.before_training",
    "trainer.run_name": "name",
    "trainer.project_name": "project",
    "generator.n_samples_per_prompt": "training.group_size",
    "generator.max_turns": "env.max_turns",
    "generator.sampling_params.temperature": "training.temperature",
    "generator.eval_sampling_params.temperature": "evaluation.temperature",
    "generator.sampling_params.max_generate_length": "training.max_tokens_per_turn",
    "generator.inference_engine.tensor_parallel_size": "backend.engine.tensor_parallel",
    # SkyRL before 0.3
    "generator.inference_engine_tensor_parallel_size": "backend.engine.tensor_parallel",
    "generator.gpu_memory_utilization": "backend.engine.memory_fraction",
    "generator.enforce_eager": "backend.engine.eager",
    "generator.enable_prefix_caching": "backend.engine.prefix_caching",
    "generator.max_num_seqs": "backend.engine.max_sequences",
    # run.sh of the Slime tutorial
    "--lr": "training.learning_rate",
    "--weight-decay": "training.weight_decay",
    "--adam-beta1": "training.adam_beta1",
    "--adam-beta2": "training.adam_beta2",
    "--adam-eps": "training.adam_eps",
    "--lr-decay-style": "training.lr_schedule",
    "--n-samples": "training.group_size",
    "--rollout-batch-size": "training.prompts_per_step",
    "--max-response-len": "training.max_tokens_per_turn",
    "--temperature": "training.temperature",
    "--num-rollout": "training.num_steps",
    "--num-epoch": "training.epochs",
    "--max-tokens-per-gpu": "training.max_tokens_per_micro_batch",
    "--save-interval": "training.checkpoint_every",
    "--actor-nodes": "hardware.num_nodes",
    "--wandb-project": "project",
    "--wandb-run": "name",
    "--wandb-run-name": "name",
    "--context-parallel-size": "backend.parallel.context",
    "--kl-loss-coef": "training.kl_coef",
    "--critic-lr": "training.critic_learning_rate",
    # train_config.yaml and the scripts that fetch tasks
    "nonterminal_reward": "env.reward.nonterminal",
    "reward_reduction": "env.reward.reduction",
    "max_turns": "env.max_turns",
    "MAX_TURNS": "env.max_turns",
    "--split": "env.train.split",
    "--max-tasks": "env.train.num_tasks",
    "RUN_NAME": "name",
    "OPENREWARD_RUN_NAME": "name",
    # TRL
    "num_generations": "training.group_size",
    "learning_rate": "training.learning_rate",
    "max_steps": "training.num_steps",
    "num_train_epochs": "training.epochs",
    "beta": "training.kl_coef",
    "max_completion_length": "training.max_response_tokens",
    "max_tool_calling_iterations": "env.max_turns",
    "gamma": "algorithm.critic.discount",
    "lam": "algorithm.critic.gae_lambda",
    "cliprange_value": "algorithm.critic.value_clip",
    "target": "env.target",
    "num_tasks": "env.train.num_tasks",
    "split": "env.train.split",
    "indices": "env.train.indices",
    "env_name": "env.variant",
}
"""Their word -> the field of xp's that takes the same value."""

BATCH = (
    "training.prompts_per_step tasks of training.group_size episodes are a step,"
    " training.micro_batch_size episodes a forward pass"
)
HARDWARE = "hardware=a100x4 chooses accelerators and their number, hardware.accelerators_per_node only the number"
EXPORT = "export it; xp passes each variable to the stages that need it, and accepts no secret on a command line"
RESUMED = "resume=RUN continues a run; training.initial_checkpoint=DIR starts one from a Hugging Face directory"
MODEL = "model=NAME; model=hf model.path=ORG/NAME for one without an option"
PREPARED = "preparation makes the files of tasks, below outputs=DIR"
ROWS = (
    "env=graded env.rows=package.module:function gives rows of your own, env.grader=package.module:function grades them"
)
EPISODES = "nothing to set: every episode is in the run's trajectories"

SAID: Mapping[str, str] = {
    # SkyRL
    "trainer.policy_mini_batch_size": "training.updates_per_step (prompts_per_step / mini-batch)",
    "trainer.algorithm.advantage_estimator": "algorithm.estimator, which algorithm=NAME chooses",
    "trainer.algorithm.policy_loss_type": "algorithm.policy_loss and .ratio_level, which algorithm=NAME chooses",
    "trainer.strategy": "backend.parallel.strategy=fsdp2 or megatron",
    "trainer.critic.model.path": "algorithm=ppo; its critic starts from the policy's own weights",
    "trainer.policy.model.path": "model=NAME chooses it; model=hf model.path=ORG/NAME for one of your own",
    "trainer.logger": "tracking=[wandb]; the console always shows the log",
    "trainer.resume_mode": "resume=RUN continues a run; a new run starts from the beginning",
    "trainer.resume_path": RESUMED,
    "trainer.placement.colocate_all": "backend.engine.placement=colocated or separate",
    "trainer.placement.policy_num_gpus_per_node": HARDWARE,
    "trainer.placement.ref_num_gpus_per_node": HARDWARE,
    "generator.inference_engine.num_engines": f"{HARDWARE}; each engine has backend.engine.tensor_parallel of them",
    "environment.env_class": "env=NAME, or env=graded env.env_class=NAME for one of skyrl_gym's",
    "environment.skyrl_gym.max_env_workers": "env.limits.max_sessions bounds what is open at the same time",
    "data.train_data": "env.train chooses the tasks; preparation makes the files",
    "data.val_data": "env.held_out chooses the tasks; preparation makes the files",
    "data_source": ROWS,
    "env_class": ROWS,
    "reward_spec": ROWS,
    "extra_info": ROWS,
    "prompt": ROWS,
    # SkyRL before 0.3
    "trainer.use_sample_packing": "nothing to set: on accelerators padding is left out",
    "generator.backend": "nothing to set: SkyRL generates only with vLLM (backend.engine.name)",
    "generator.num_inference_engines": f"{HARDWARE}; each engine has backend.engine.tensor_parallel of them",
    "generator.weight_sync_backend": "nothing to set: weights go to the engines by nccl",
    "generator.run_engines_locally": "nothing to set: the engines run in the job",
    "generator.async_engine": "nothing to set: the engines are asynchronous",
    # run.sh of the Slime tutorial
    "--model": MODEL,
    "--megatron-ckpt": "backend.convert_model=true makes it from the Hugging Face model",
    "--model-args": "model=NAME; Megatron's flags are made from model.architecture",
    "--megatron-path": "export MEGATRON_PATH=DIR",
    "--slime-path": "export SLIME_PATH=DIR",
    "--save": "outputs=DIR; checkpoints are in the run's directory",
    "--load": RESUMED,
    **dict.fromkeys(("--batch-size", "batch_size", "--train-batch-size", "train_batch_size"), BATCH),
    **dict.fromkeys(("--num-gpus", "num_gpus", "gpus", "n_gpus", "gpus_per_node", "num_gpus_per_node"), HARDWARE),
    "--actor-gpus": f"{HARDWARE}; backend.engine.accelerators are the engines' own",
    "--rollout-gpus": "backend.engine.accelerators, with backend.engine.placement=separate",
    "--tp": "backend.engine.tensor_parallel for the engines, backend.parallel.tensor for Megatron",
    "--train-backend": "backend.parallel.strategy (Slime supports only megatron; fsdp2 is for backend=skyrl or trl)",
    "--max-total-len": "training.max_response_tokens, without the prompt's training.max_prompt_tokens",
    "--use-dynamic-batch-size": "training.max_tokens_per_micro_batch=N packs episodes up to N tokens",
    "--gradient-checkpointing": "training.gradient_checkpointing=true",
    "--use-kl-loss": "training.kl_coef above 0",
    "--kl-coef": "training.kl_coef; the penalty is in the loss, not in the reward",
    "--advantage-estimator": "algorithm.estimator, .policy_loss and .ratio_level, which algorithm=NAME chooses",
    "--custom-advantage-function-path": "algorithm=custom algorithm.advantage_fn=package.module:function",
    "--colocate": "backend.engine.placement=colocated",
    "--task-data": PREPARED,
    "--use-wandb": "tracking=[wandb]",
    "--wandb-group": "project",
    "--wandb-key": EXPORT,
    # train_config.yaml and the scripts that fetch tasks
    "environments": "env=NAME, or env=[a,b] for several",
    **dict.fromkeys(("splits", "env.splits", "env.train.splits"), "env.train.split, one name or a list: [train,extra]"),
    "secrets": "env.secrets.NAME=null hands the variable of that name to each session",
    "openai_api_key": "env.secrets.OPENAI_API_KEY=null hands the variable of that name to each session",
    "api_key": EXPORT,
    "--config": "recipes=NAME, or --config-dir DIR for options of your own",
    "--env": "env=NAME; env=openreward env.target=Org/Name for one without an option",
    "--env_name": "env=NAME",
    "--output": PREPARED,
    "--output_dir": PREPARED,
    "--command": "launcher=modal; the job's command is made from the spec",
    # TRL
    "loss_type": "algorithm.loss_aggregation, and algorithm.policy_loss where it is cispo",
    "log_completions": EPISODES,
    "model": MODEL,
    "args": "training.KEY=VALUE; GRPOConfig's other fields are backend.overrides.KEY=VALUE with backend=trl",
    "train_dataset": "env=NAME; env.train chooses the tasks",
    "environment_factory": "env=NAME, or env.provider=package.module:Class of your own",
    "reward_funcs": "env.reward and env.reward_fn, package.module:function or a list of those",
    "reward_weights": "the weights in env.reward_fn=[{fn: package.module:function, weight: 0.5}, ...]",
    "include_metadata": 'nothing to set: a function of env.reward_fn with a parameter `task` reads task["metadata"]',
    # variables of the public scripts
    "MODEL": MODEL,
    "NUM_GPUS": HARDWARE,
    "LOGGER": "tracking=[wandb]; tracking=[] is the console only",
    "ENV_NAME": "env=NAME",
    "MODAL_GPU": "launcher=modal; " + HARDWARE,
    "OPENREWARD_UPLOAD_ROLLOUT": "upload_rollouts=true or false",
    "OPENREWARD_API_KEY": EXPORT,
    "WANDB_API_KEY": f"tracking=[wandb]; {EXPORT}",
    "OPENAI_API_KEY": f"env.secrets.OPENAI_API_KEY=null hands it to each session; {EXPORT}",
    "OPENREWARD_API_URL": "env.target=URL; a variable of that name is read too where it is exported",
    "OPENREWARD_SESSION_URL": "env.target=URL; a variable of that name is read too where it is exported",
    "TRL_EXPERIMENTAL_SILENCE": "nothing to set: it only hides a warning of TRL's",
    "DATA_DIR": PREPARED,
    "CKPT_DIR": "outputs=DIR; checkpoints are in the run's directory",
    "EXPORT_DIR": "outputs=DIR; exported models are in the run's directory",
    "recipe": "recipes=NAME",
    # an earlier key of xp's own
    "evaluation.num_episodes": "evaluation.num_tasks (of the held-out tasks) and evaluation.samples_per_task",
    # said by several
    "advantage_estimator": "algorithm=NAME chooses it",
    "adv_estimator": "algorithm=NAME chooses it",
    "algorithm.adv_estimator": "algorithm=NAME chooses it",
    "policy_loss_type": "algorithm=NAME chooses it",
}
"""Their word -> a sentence about xp's, where the value is another."""
