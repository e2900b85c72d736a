"""What a run may be: the whole schema on one page. Values live in conf/, never here.

Every section is frozen and strict, refuses unknown keys, and takes finite numbers only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from xp.episode.config import Dialect, OnMalformedCall, OnNoToolCall, Reduction, ToolCallsPerTurn

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
EnvVarName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ModulePath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]


class Section(BaseModel):
    """A part of the spec."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Selection(Section):
    """Which tasks of an environment."""

    split: str
    """The environment's own split."""
    num_tasks: Count | None
    """How many; None: all of the split."""
    indices: tuple[Annotated[int, Field(ge=0)], ...] | None
    """Exactly these positions within the split; excludes num_tasks."""
    shuffle: bool
    """Whether num_tasks are drawn at random (by `seed`) instead of from the front."""
    seed: int
    fraction: Annotated[float, Field(gt=0, lt=1)] | None
    """Share of the split, chosen by hash, that is held out; for environments that have one split only."""

    @model_validator(mode="after")
    def _one_way_to_select(self) -> Selection:
        if self.num_tasks is not None and self.indices is not None:
            raise ValueError("num_tasks and indices exclude each other: set one of them to null")
        return self


class Reward(Section):
    """From the rewards of an episode's steps to the episode's reward; the same on every backend."""

    reduction: Reduction
    nonterminal: float | None
    """Added as a last step reward when the environment never said that it is finished."""
    minimum: float | None
    maximum: float | None


class EnvLimits(Section):
    """Deadlines and bounds of an environment's sessions."""

    create_timeout_s: Seconds
    call_timeout_s: Seconds
    episode_timeout_s: Seconds
    max_sessions: Count
    """Sessions open at the same time in one process."""
    max_attempts: Count
    """Tries of a request that provably did not execute."""
    retries_per_episode: Annotated[int, Field(ge=0)]
    """Whole-episode retries on a fresh session before an episode is void."""


class SecretSource(Section):
    """Where a secret comes from: a name, never a value."""

    from_env: EnvVarName


class EnvMember(Section):
    """One environment of the mix."""

    provider: str
    """`openreward`, or `package.module:Class` of your own provider."""
    target: str | None
    """`Org/Name` in the OpenReward catalog, or the URL of an ORS server."""
    serve: ModulePath | None
    """`package.module:Class` of an ORS environment that xp serves itself on 127.0.0.1."""
    variant: str | None
    """Which environment of the server; None: its first."""
    train: Selection
    held_out: Selection
    weight: Annotated[float, Field(gt=0)]
    """Share in the mix, relative to the other members."""
    max_turns: Count
    """Assistant messages per episode."""
    reward: Reward
    reward_fn: ModulePath | None
    """`package.module:function` of your own, from the settled Outcome to its reward."""
    on_no_tool_call: OnNoToolCall
    on_malformed_call: OnMalformedCall
    tool_calls_per_turn: ToolCallsPerTurn
    system_prompt: str | None
    """Put before the environment's own prompt; None: no system message."""
    limits: EnvLimits
    secrets: dict[EnvVarName, SecretSource | None]
    """Handed to each session by name; null: the variable of the same name (in upper case)."""
    allowed_origins: tuple[str, ...]
    """Origins beside the catalog's that may receive the API key and the secrets."""

    @model_validator(mode="after")
    def _one_address(self) -> EnvMember:
        if self.provider == "openreward" and (self.target is None) == (self.serve is None):
            raise ValueError("give exactly one of target (a catalog name or a URL) and serve (package.module:Class)")
        return self


class Environments(Section):
    """The mix; a single environment is a mix of one."""

    members: Annotated[dict[Name, EnvMember], Field(min_length=1)]


class Build(Section):
    """A model made on the spot: architecture, tokenizer and supervised warm-up (xp.bundled.build says what each is)."""

    seed: int
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    intermediate_size: Count
    vocab_size: Count
    rope_theta: Annotated[float, Field(gt=0)]
    initializer_range: Annotated[float, Field(gt=0)]
    warmup_steps: Count
    warmup_batch_size: Count
    warmup_ramp_steps: Count
    warmup_learning_rate: Annotated[float, Field(gt=0)]
    matrix_learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    choice_weight: Annotated[float, Field(gt=0)]
    reply_weight: Annotated[float, Field(ge=0)]
    bare_share: Fraction
    bare_probability: Fraction
    hasty_share: Fraction
    sloppy_share: Fraction

    @model_validator(mode="after")
    def _shares_add_up(self) -> Build:
        if self.hasty_share + self.sloppy_share > 1:
            raise ValueError("hasty_share + sloppy_share is more than 1")
        return self


class Model(Section):
    """The policy."""

    name: Name
    path: str | None
    """Hugging Face id or local directory; None where `build` makes the model."""
    build: Build | None
    dtype: DType
    """Of the weights that are trained."""
    dialect: Dialect
    """How it writes tool calls."""
    max_context_tokens: Count
    """Longest sequence that it can take."""

    @model_validator(mode="after")
    def _one_origin(self) -> Model:
        if (self.path is None) == (self.build is None):
            raise ValueError("give exactly one of path (a Hugging Face id or directory) and build")
        return self


class DType(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Estimator(StrEnum):
    GRPO = "grpo"


class AdvantageScale(StrEnum):
    """By what the centred reward is divided."""

    GROUP_STD = "group_std"
    BATCH_STD = "batch_std"
    NONE = "none"


class LossAggregation(StrEnum):
    """Over what the policy loss is averaged."""

    TOKEN_MEAN = "token_mean"
    """All trained tokens of an optimizer update."""
    SEQUENCE_MEAN = "sequence_mean"
    """Per-episode token means, then the mean over episodes (GRPO's paper, arXiv:2402.03300)."""
    CONSTANT = "constant"
    """Sum over tokens divided by episodes x max_response_tokens (Dr. GRPO, arXiv:2503.20783)."""


class KlEstimator(StrEnum):
    """Schulman's estimators of KL(policy || reference), http://joschu.net/blog/kl-approx.html."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class Algorithm(Section):
    """The mathematics; sizes and rates are in `training`."""

    name: Name
    estimator: Estimator
    advantage_scale: AdvantageScale
    clip_low: Annotated[float, Field(ge=0, lt=1)]
    """The probability ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: Annotated[float, Field(ge=0)]
    loss_aggregation: LossAggregation
    kl_estimator: KlEstimator
    """Form of the penalty whose size is training.kl_coef."""
    mask_truncated: bool
    """Whether truncated episodes are left out of the loss."""
    dynamic_sampling: bool
    """Whether groups without variance are replaced (DAPO, arXiv:2503.14476)."""


class LrSchedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Training(Section):
    """Sizes, rates and limits; the defaults come with the model."""

    num_steps: Count
    """Rollout steps: batches of fresh episodes."""
    prompts_per_step: Count
    """Distinct tasks per rollout step."""
    group_size: Annotated[int, Field(ge=2)]
    """Episodes per task; GRPO's baseline is their mean."""
    updates_per_step: Count
    """Optimizer updates per pass over a step's episodes."""
    passes_per_step: Count
    """Passes over the same episodes."""
    micro_batch_size: Count
    """Episodes per accelerator in one forward-backward."""
    learning_rate: Annotated[float, Field(gt=0)]
    lr_schedule: LrSchedule
    warmup_updates: Annotated[int, Field(ge=0)]
    """Optimizer updates of linear warm-up."""
    weight_decay: Annotated[float, Field(ge=0)]
    adam_beta1: Annotated[float, Field(ge=0, lt=1)]
    adam_beta2: Annotated[float, Field(ge=0, lt=1)]
    adam_eps: Annotated[float, Field(gt=0)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    kl_coef: Annotated[float, Field(ge=0)]
    """Weight of the KL penalty to the initial model; 0: no reference model is loaded."""
    temperature: Annotated[float, Field(gt=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count | None
    """None: off."""
    max_prompt_tokens: Count
    """Tasks with a longer prompt are left out, and counted."""
    max_tokens_per_turn: Count
    max_response_tokens: Count
    """All turns of an episode together, tool results included."""
    checkpoint_every: Count
    """Rollout steps between checkpoints; the last step always has one."""
    keep_checkpoints: Count
    gradient_checkpointing: bool
    shuffle: bool
    """Whether tasks are drawn in a random order (by `seed`)."""
    max_void_fraction: Fraction
    """The run stops when more episodes of a step, or of an evaluation, are void than this."""


class Evaluation(Section):
    """Held-out episodes, the same before and after training."""

    num_episodes: Count
    """Spread evenly over the held-out tasks; rounded up to whole rounds of them."""
    temperature: Annotated[float, Field(ge=0)]
    """0: greedy."""
    before_training: bool
    batch_size: Count
    """Episodes played at the same time."""


class BackendName(StrEnum):
    TRL = "trl"
    SKYRL = "skyrl"
    SLIME = "slime"


class RuntimeSpec(Section):
    """Which Python the job gets; all null: the interpreter that runs xp."""

    python: str | None
    """Interpreter of a virtual environment that holds the trainer."""
    project_env: EnvVarName | None
    """Name of the variable that holds the path of a checkout."""
    image: str | None
    """Container image, for launchers that take one."""


class Backend(Section):
    """Who trains."""

    name: BackendName
    pins: dict[str, str]
    """Package -> version that xp's rendering was proven against."""
    runtime: RuntimeSpec
    num_threads: Count
    """CPU threads of the trainer; used where hardware has no accelerator."""
    overrides: dict[str, Any]
    """Native keys of the trainer, passed through; one that xp renders itself is an error."""


class Hardware(Section):
    """What the job needs; where it gets it is the launcher's affair."""

    name: Name
    accelerator: str
    """`cpu`, or the accelerator's name."""
    accelerators_per_node: Annotated[int, Field(ge=0)]
    accelerator_memory_gb: Annotated[float, Field(ge=0)]
    num_nodes: Count
    num_cpus: Count
    """Per node."""
    memory_gb: Annotated[float, Field(gt=0)]
    """Of the host, per node."""


class LauncherName(StrEnum):
    LOCAL = "local"


class LauncherSpec(Section):
    """Where it runs."""

    name: LauncherName
    grace_s: Seconds
    """Between TERM and KILL when a run is stopped."""
    max_restarts: Annotated[int, Field(ge=0)]
    """New attempts after an infrastructure failure; never after a fault of the user's."""


class Preparation(Section):
    """How tasks are fetched; changes nothing about what they are."""

    concurrency: Count
    """Sessions opened at the same time."""
    allow_missing_fraction: Fraction
    """Share of tasks that may fail before the stage does."""


class Tracker(StrEnum):
    """Where metrics go beside metrics.jsonl."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"


class RunSpec(Section):
    """One experiment, fully resolved."""

    name: Name
    """First part of the run's directory name."""
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    """Of sampling, data order and the trainer."""
    outputs: str
    """Directory of runs, task sets and made models."""
    project: Name
    """Name under which trackers file the run."""
    tracking: tuple[Tracker, ...]
    upload_rollouts: bool
    """Whether trajectories are sent to OpenReward, under the run's id."""
    env: Environments
    model: Model
    algorithm: Algorithm
    training: Training
    evaluation: Evaluation
    preparation: Preparation
    backend: Backend
    hardware: Hardware
    launcher: LauncherSpec


Model.model_rebuild()
