"""Configuration of an episode, as one frozen value: written as `episode.json` above the wall, read below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from xp.lib.codec import JsonFile


class Reduction(StrEnum):
    """Reduction of the rewards of an episode's steps to one number."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    LAST = "last"


class OnNoToolCall(StrEnum):
    """Effect of a turn without a tool call."""

    STOP = "stop"
    NUDGE = "nudge"


class OnMalformedCall(StrEnum):
    """Effect of a turn whose tool call cannot be parsed."""

    TELL = "tell"
    STOP = "stop"


class ToolCallsPerTurn(StrEnum):
    """Tool calls of one turn that are executed."""

    FIRST = "first"
    ALL = "all"


class PromptSource(StrEnum):
    """Source of the prompt that the model reads."""

    PREPARED = "prepared"
    """The task set; a session with another prompt makes its episode void."""
    LIVE = "live"
    """The episode's own session, whose prompt may be drawn anew."""


class SandboxKind(StrEnum):
    """Sandbox of the model's commands."""

    DOCKER = "docker"
    """A container for each session."""
    NONE = "none"
    """A new directory on this machine for each session, without isolation."""


class GraderForm(StrEnum):
    """Form of a grader function's call."""

    XP = "xp"
    """`(answer, row)`."""
    VERL = "verl"
    """verl's `(data_source, solution_str, ground_truth, extra_info)`, or those of them that it has."""
    TRL = "trl"
    """TRL's `(prompts, completions, **columns)`, which returns a list."""


class JudgeScoring(StrEnum):
    """Content of one request to a judge."""

    POINTWISE = "pointwise"
    """One answer, when its episode ends."""
    PAIRWISE = "pairwise"
    """Two answers of a group; each two are asked in both orders."""
    GROUPWISE = "groupwise"
    """All answers of a group."""


class Dialect(StrEnum):
    """Format of the model's tool calls (xp.episode.dialects has a parser for each)."""

    HERMES = "hermes"
    """`<tool_call>{json}</tool_call>`: Qwen2.5, Qwen3, Hermes."""
    ACTION = "action"
    """`<action>...</action>` around the argument of the environment's only tool, or around its arguments as JSON."""
    QWEN_XML = "qwen_xml"
    """`<function=...><parameter=...>`: Qwen3.5, Qwen3-Coder, Nemotron 3."""
    LLAMA_JSON = "llama_json"
    """`{"name": ..., "parameters": {...}}`: Llama 3.1 and later."""
    PYTHONIC = "pythonic"
    """`[tool(name=value)]`: Llama 3.2 and 4, LFM2."""
    GLM = "glm"
    """`<arg_key>` and `<arg_value>`: GLM 4.5 and later."""
    HARMONY = "harmony"
    """Messages on channels: gpt-oss."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS]tool[ARGS]{json}`, or a list of objects: Mistral, Ministral, Devstral."""
    DEEPSEEK = "deepseek"
    """`<｜tool▁call▁begin｜>tool<｜tool▁sep｜>{json}<｜tool▁call▁end｜>`: DeepSeek V3, R1 and V3.1."""
    KIMI = "kimi"
    """`<|tool_call_begin|>functions.tool:0<|tool_call_argument_begin|>{json}<|tool_call_end|>`: Kimi K2."""
    GEMMA = "gemma"
    """`<|tool_call>call:tool{name:value}<tool_call|>`: Gemma 4."""
    COHERE = "cohere"
    """`<|START_ACTION|>[{json}]<|END_ACTION|>`: Command R7B, Command A."""
    MINIMAX = "minimax"
    """`<invoke name=...><parameter name=...>`: MiniMax M2."""
    AUTO = "auto"
    """The format of the model's chat template (xp.episode.auto_dialect)."""


def dialect_of(text: str) -> Dialect | str:
    """Dialect from its name in a job's files: one of xp's own, or `module:attribute` of a plugin."""
    return text if ":" in text else Dialect(text)


class ToolsPrompt(StrEnum):
    """Source of the tools' description, the chat template or the system prompt, and role of tool results."""

    TEMPLATE = "template"
    """The model's chat template gets the tools, and messages of the role `tool`."""
    SYSTEM = "system"
    """xp writes the tools in the system message and results in user messages, for a template without tools
    (xp.episode.prompt)."""


@dataclass(frozen=True)
class Chat:
    """Rendering of a dialogue for the model."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking."""
    tools_prompt: ToolsPrompt = ToolsPrompt.TEMPLATE
    dialect: Dialect | str = Dialect.HERMES
    """Format in which xp writes the tools: one of xp's own, or `module:attribute` of a plugin."""
    keep_prompts: bool = False
    """True if trajectories include the model's exact prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dialect", dialect_of(self.dialect))


MAX_REWARD = 1e6
"""Largest absolute value of a step's and of the episode's reward; a larger one makes the episode void."""


@dataclass(frozen=True)
class RewardRule:
    """Rule that computes an episode's reward from its step rewards; see xp.episode.rewards."""

    reduction: Reduction
    nonterminal: float | None
    """Appended as the last step reward if the environment never reported `finished`; None: nothing is appended."""
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class WeightedFn:
    """One of the user's reward functions."""

    fn: str
    """`package.module:function`."""
    weight: float
    """Factor of its value; the episode's reward is the sum over all functions."""


@dataclass(frozen=True, kw_only=True)
class ChatEndpoint:
    """A model behind an OpenAI-compatible API."""

    url: str
    name: str
    key: str | None
    """Name of the variable with the API key."""
    max_tokens: int
    limit_name: str
    seed: int | None
    timeout_s: float
    max_attempts: int = 8
    """Tries of a request that meets 429, 5xx or a broken connection."""


@dataclass(frozen=True, kw_only=True)
class JudgeEndpoint(ChatEndpoint):
    """The model of a judge; without `url`, the one that the stage serves (xp.engines.judge_server)."""

    price_in: float | None
    price_out: float | None
    temperature: float
    concurrency: int


@dataclass(frozen=True)
class JudgeConfig:
    """A judge by rubric; see xp.episode.judge."""

    rubric: str
    """Its text, or `column:NAME` of the task's description."""
    model: JudgeEndpoint
    scoring: JudgeScoring
    scale: tuple[float, float]
    weight: float
    """Factor of its score between 0 and 1, which is added to the reward."""


@dataclass(frozen=True)
class Limits:
    """Deadlines and bounds of one environment's sessions."""

    create_timeout_s: float
    call_timeout_s: float
    episode_timeout_s: float
    max_sessions: int
    """Largest number of sessions that one process has open at the same time."""
    retries_per_episode: int
    """Retries of a whole episode on a new session before it is void."""
    memory_gb: float | None
    """Memory limit in GB of each process that xp starts for the environment: its server or grader. None: no limit."""


@dataclass(frozen=True)
class EnvConfig:
    """One member of the mixture, with everything that its provider and episodes need; no secret values."""

    name: str
    provider: str
    """Name of one of xp's own providers, or `module:Class`."""
    target: str | None
    """`Org/Name` in the catalog, or the URL of a server."""
    serve: str | None
    """`module:Class` of an environment that xp serves on 127.0.0.1."""
    variant: str | None
    """Name of the environment on its server; None: the only one, or the last part of the target's name."""
    max_turns: int
    reward: RewardRule
    on_no_tool_call: OnNoToolCall
    on_malformed_call: OnMalformedCall
    tool_calls_per_turn: ToolCallsPerTurn
    dialect: Dialect | str
    """Format of tool calls: one of xp's own, or `module:attribute` of a plugin."""
    limits: Limits
    secrets: tuple[str, ...]
    """Names of the environment variables that each session gets."""
    allowed_origins: tuple[str, ...]
    """Origins (scheme://host[:port]) that may receive the API key and the secrets, in addition to the catalog's."""
    reward_fn: tuple[WeightedFn, ...] | None = None
    """Functions from the settled EpisodeResult to its reward; None: the rule's reward is used."""
    group_reward_fn: str | None = None
    """Function from the settled episodes of a group to their rewards; None: each keeps its own."""
    group_score_weight: float | None = None
    """Factor of the environment's own scores of a group, which are added; None: they are not requested."""
    judge: JudgeConfig | None = None
    image: str | None = None
    """Docker image of a server that the provider starts."""
    python: str | None = None
    """Interpreter that runs `serve` or the provider's package; None: see xp.envs.pythons."""
    sandbox: SandboxKind | None = None
    """Sandbox of commands; None: the provider runs no commands."""
    grader: str | None = None
    """`module:function` or `module:Class` that scores answers."""
    grader_form: GraderForm = GraderForm.XP
    grader_args: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of a grader's function or class."""
    env_class: str | None = None
    """Name of an environment in skyrl_gym's registry."""
    rows: str | Mapping[str, str] | None = None
    """Tasks: see xp.envs.rows.load_rows; None: the grader's own."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """`prompt`, `answer` or `split` -> the column of the rows that has it."""
    num_seeds: int = 1
    """Number of reset seeds for each row."""
    system_prompt: str | None = None
    """System message before the environment's own prompt, with `{tools}` and `{tool_names}`; None: no message."""
    prompt: PromptSource = PromptSource.PREPARED
    toolset: str | None = None
    """Name of a toolset that the server adds to each session."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the environment's server."""
    secret_overrides: Mapping[str, str] = field(default_factory=dict)
    """The same for secrets: name -> variable of this process with the value."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the provider's own schema."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dialect", dialect_of(self.dialect))


@dataclass(frozen=True)
class EpisodeConfig(JsonFile):
    """The mixture: all environments of this job's episodes."""

    SORTS_KEYS = True
    members: Mapping[str, EnvConfig]

    def max_sessions(self) -> int:
        """The smallest limit of any member on concurrent sessions."""
        return min(member.limits.max_sessions for member in self.members.values())
