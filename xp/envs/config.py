"""Configuration of an episode, as one frozen value: written as `episode.json` above the wall, read below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from xp.codec import JsonFile


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
    """Effect of a turn whose tool call cannot be read."""

    TELL = "tell"
    STOP = "stop"


class ToolCallsPerTurn(StrEnum):
    """Tool calls of one turn that are executed."""

    FIRST = "first"
    ALL = "all"


class SandboxKind(StrEnum):
    """Place in which the commands of a model run."""

    DOCKER = "docker"
    """A container for each session."""
    NONE = "none"
    """A fresh directory for each session on this machine, without isolation."""


class Dialect(StrEnum):
    """Format in which the model writes a tool call (xp.episode.dialects has a reader for each)."""

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
    AUTO = "auto"
    """Whichever of the above the model's chat template writes (xp.episode.auto_dialect)."""


def dialect_of(text: str) -> Dialect | str:
    """A dialect as a job's files name it: one of xp's own, or `module:attribute` of a plugin's."""
    return text if ":" in text else Dialect(text)


class ToolsPrompt(StrEnum):
    """Place of the tools' description: the chat template or the system prompt; and the role of their results."""

    TEMPLATE = "template"
    """The model's chat template, which is given the tools and messages of the role `tool`."""
    SYSTEM = "system"
    """xp, in the system message and in user messages, for a template that knows no tools (xp.episode.tools_prompt)."""


@dataclass(frozen=True)
class Chat:
    """Rendering of a dialogue for the model."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking."""
    tools_prompt: ToolsPrompt = ToolsPrompt.TEMPLATE
    dialect: Dialect | str = Dialect.HERMES
    """In which xp writes the tools; `module:attribute` of a plugin's."""
    keep_prompts: bool = False
    """True if trajectories keep the prompt as the model read it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dialect", dialect_of(self.dialect))


@dataclass(frozen=True)
class RewardRule:
    """Rule that makes an episode's reward of the rewards of its steps; see xp.episode.rewards."""

    reduction: Reduction
    nonterminal: float | None
    """Added as a last step reward when the environment never said `finished`; None: nothing is added."""
    minimum: float | None
    maximum: float | None
    bound: float
    """Largest distance from 0 of a step's and of the episode's reward; one beyond it makes the episode void."""


@dataclass(frozen=True)
class WeightedFn:
    """One reward function of the user's own."""

    fn: str
    """`package.module:function`."""
    weight: float
    """Factor of what it gives in the episode's reward, which is the sum."""


@dataclass(frozen=True)
class Limits:
    """Deadlines and bounds of one environment's sessions."""

    create_timeout_s: float
    call_timeout_s: float
    episode_timeout_s: float
    max_sessions: int
    """Sessions open at the same time in one process."""
    max_attempts: int
    """Tries of a question, and of a call that provably did not execute although the server was there (429)."""
    retries_per_episode: int
    """Whole-episode retries on a fresh session before an episode is void."""
    memory_gb: float | None
    """Memory limit in GB of each process that xp starts for the environment: its server or grader. None: no limit."""


@dataclass(frozen=True)
class EnvConfig:
    """One member of the mixture, with everything that its provider and its episodes need. Holds no secret value."""

    name: str
    provider: str
    """One of xp's own, or `module:Class`."""
    target: str | None
    """`Org/Name` in the catalog, or the URL of a server."""
    serve: str | None
    """`module:Class` of an environment that xp serves itself on 127.0.0.1."""
    variant: str | None
    """Name of the environment on its server; None: the only one, or the last part of the target's name."""
    max_turns: int
    reward: RewardRule
    on_no_tool_call: OnNoToolCall
    on_malformed_call: OnMalformedCall
    tool_calls_per_turn: ToolCallsPerTurn
    dialect: Dialect | str
    """One of xp's own, or `module:attribute` of a plugin's."""
    limits: Limits
    secrets: tuple[str, ...]
    """Names of the environment variables that are handed to each session."""
    allowed_origins: tuple[str, ...]
    """Origins (scheme://host[:port]) beside the catalog's own that may receive the API key and the secrets."""
    reward_fn: tuple[WeightedFn, ...] | None = None
    """Functions from the settled EpisodeResult to its reward; None: the rule's reward is used."""
    image: str | None = None
    """Docker image of a server that the provider starts."""
    python: str | None = None
    """Interpreter that runs `serve`, or the package that the provider needs; None: see xp.envs.pythons."""
    sandbox: SandboxKind | None = None
    """Place in which commands run; None: the provider runs none."""
    grader: str | None = None
    """`module:function` or `module:Class` that scores answers."""
    env_class: str | None = None
    """Name of an environment in skyrl_gym's registry."""
    rows: str | None = None
    """`package:file.jsonl` or `module:function`: the tasks; None: the grader's own."""
    num_seeds: int = 1
    """Reset seeds for each row."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the provider's own schema."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dialect", dialect_of(self.dialect))


@dataclass(frozen=True)
class EpisodeConfig(JsonFile):
    """The mixture: every environment that episodes of this job may open."""

    SORTS_KEYS = True
    members: Mapping[str, EnvConfig]

    def max_sessions(self) -> int:
        """The smallest bound of any member on sessions open at the same time."""
        return min(member.limits.max_sessions for member in self.members.values())
