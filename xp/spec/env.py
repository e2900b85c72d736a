"""Environments: their tasks, the limits of an episode, and its reward."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from xp.errors import nearest
from xp.lib.codec import IN_JOB
from xp.lib.plugins import Kind
from xp.lib.secrets.shapes import looks_like_secret
from xp.lib.text import word_list
from xp.spec.dialect import DialectName
from xp.spec.judge import JudgeScoring, JudgeSpec, with_defaults
from xp.spec.open_name import checked_name, checked_options
from xp.spec.reward_fn import RewardFns
from xp.spec.section import (
    CATALOG_NAME,
    CHECKED_BELOW,
    FORMS,
    MODULE_PATH,
    MOST_COUNT,
    Count,
    CountOrZero,
    EnvVarName,
    ImageName,
    LocalPath,
    ModulePath,
    Name,
    Number,
    OpenKeys,
    Positive,
    RowsName,
    Seconds,
    Section,
    check_http_url,
    check_plain_url,
)
from xp.spec.tasks import HeldOutSpec, SelectionSpec

READY = {
    name: f"xp.envs.builtin.graders:{name}"
    for name in ("exact", "contains", "number", "regex", "boxed", "choice", "gsm8k", "none")
} | {"math": "xp.envs.builtin.math_verified:math"}
"""Ready graders: name -> the function."""
PROVIDER_FIELDS = {
    "openreward": word_list("target serve python variant toolset overrides group_score_weight"),
    "openenv": word_list("target serve image python overrides rows columns num_seeds"),
    "local": word_list("grader grader_form grader_args env_class rows columns"),
    "reasoning_gym": word_list("python"),
    "verifiers": word_list("target python"),
    "inspect": word_list("target python"),
    "harbor": word_list("target sandbox python"),
    "harness": word_list("target serve python variant rows columns sandbox"),
}
"""Fields that xp's own providers read; a user's provider may read any."""
HOSTED = {"reasoning_gym": "reasoning-gym", "verifiers": "verifiers", "inspect": "inspect_ai"}
"""Providers of other packages' environments, which `python` may run -> the package that it must have."""
ADDRESSES = {
    "openreward": {"target": "a catalog name or a URL", "serve": "package.module:Class"},
    "openenv": {
        "target": "a URL",
        "serve": "package.module:Class or :app",
        "image": "a Docker image",
    },
    "local": {
        "grader": f"{', '.join(READY)}, or module:name",
        "env_class": "registered in skyrl_gym",
    },
    "verifiers": {"target": "an installed environment package"},
    "inspect": {"target": "/path/to/file.py@task, or a task of an installed package"},
    "harbor": {"target": "a folder of task folders"},
    "harness": {
        "target": "a folder of Harbor's tasks, or an ORS server",
        "serve": "package.module:Class",
        "rows": "prompts",
    },
}
"""Fields of which exactly one must be given."""


def _grader(name: str) -> str:
    """Returns the name of a ready grader, or `module:name`; raises ValueError for another text."""
    if name not in READY and not re.fullmatch(MODULE_PATH, name):
        raise ValueError(
            f"{name!r} is no ready grader{nearest(name, READY)}; the ready ones are {', '.join(READY)}, and one of your"
            f" own {FORMS[MODULE_PATH]}"
        )
    return name


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
    DAYTONA = "daytona"
    MODAL = "modal"
    E2B = "e2b"
    RUNLOOP = "runloop"
    NONE = "none"
    """A new directory on this machine for each session, without isolation."""

    @property
    def is_cloud(self) -> bool:
        """Returns whether it is of a cloud, by the environments of the package harbor."""
        return self not in (SandboxKind.DOCKER, SandboxKind.NONE)


class GraderForm(StrEnum):
    """Form of a grader function's call."""

    XP = "xp"
    """`(answer, row)`."""
    VERL = "verl"
    """verl's `(data_source, solution_str, ground_truth, extra_info)`, or those of them that it has."""
    TRL = "trl"
    """TRL's `(prompts, completions, **columns)`, which returns a list."""


NEUTRAL: Final = {"num_seeds": 1, "grader_form": GraderForm.XP}
"""Field of PROVIDER_FIELDS that cannot be null -> its value where the provider does not read it."""
MAX_REWARD: Final = 1e6
"""Largest absolute value of a step's and of the episode's reward; a larger one makes the episode void."""


class Reward(Section):
    """Rule that computes an episode's reward from its step rewards; the same on every backend."""

    reduction: Reduction
    nonterminal: float | None
    """Appended as the last step reward where the environment never reported that the episode is finished."""
    minimum: float | None
    maximum: float | None

    def faults(self) -> Iterator[str]:
        for name in ("nonterminal", "minimum", "maximum"):
            value = getattr(self, name)
            if value is not None and not abs(value) <= MAX_REWARD:
                yield f"{name} is {value:g}; a reward beyond {MAX_REWARD:g} makes its episode void"
        if self.minimum is not None and self.maximum is not None and self.minimum >= self.maximum:
            yield (
                f"minimum is {self.minimum:g} and maximum is {self.maximum:g}: every reward would be the same;"
                " minimum must be smaller"
            )


class EnvLimits(Section):
    """Deadlines and bounds of an environment's sessions."""

    create_timeout_s: Seconds
    """Deadline for opening a session, and for an answer about the tasks; an outage is waited out until then."""
    call_timeout_s: Seconds
    """Deadline for a tool call; a refused connection is tried again until then."""
    episode_timeout_s: Seconds
    max_sessions: Count
    """Sessions open at the same time in one process."""
    retries_per_episode: CountOrZero
    """Whole-episode retries on a fresh session before an episode is void."""
    memory_gb: Annotated[float | None, Field(ge=0.25, le=MOST_COUNT)]
    """Memory of each process that the run starts for the environment: `serve`, `image`, or a grader. None means no
    bound. The stacks of its threads count, 8 MB each; those of a server's blocking calls take up to half of it, and
    further calls wait."""


class SecretSource(Section):
    """Source of a secret: a name, never a value."""

    from_env: EnvVarName


class EnvMember(Section):
    """One environment of the mixture."""

    provider: str
    """One of xp's own (docs/environments.md), a plugin's, or `package.module:Class` of your own provider."""
    options: OpenKeys
    """Fields of a provider that has a schema of its own (a package's, a plugin's), or of your own provider."""
    target: str | None
    """`Org/Name` in the OpenReward catalog, the URL of an ORS or OpenEnv server, a verifiers package, a task of
    inspect_ai, or a folder of Harbor tasks."""
    serve: ModulePath | None
    """`package.module:Class` of an ORS or OpenEnv environment (or `:app`) that xp serves itself on 127.0.0.1."""
    image: ImageName | None
    """Docker image of an OpenEnv server, started on this machine's loopback."""
    python: LocalPath | None
    """Interpreter that runs `serve`, or the provider's package. None means the stage's own, or xp's
    (launcher=local)."""
    sandbox: Annotated[SandboxKind | None, Field(strict=False)]
    """providers harbor and harness: sandbox of the model's commands, or of the program: a container of this machine
    (docker), a cloud's (daytona, modal, e2b, runloop), or `none`, this machine without isolation, as you."""
    grader: Annotated[str, AfterValidator(_grader)] | None
    """provider local: a ready one (exact, contains, number, regex, boxed, choice, math, gsm8k), or
    `package.module:function`, (answer, row) -> reward, or a class with `grade` or `step`."""
    grader_form: Annotated[GraderForm, Field(strict=False)]
    """Form of a function's call: `xp` (answer, row), `verl` (data_source, solution_str, ground_truth, extra_info), or
    `trl` (prompts, completions and the columns), which returns a list."""
    grader_args: OpenKeys
    """Keyword arguments of the grader: `tolerance` of number, `pattern` of regex, those of your own."""
    env_class: Name | None
    """provider local: an environment that skyrl_gym has registered, as the grader."""
    rows: Annotated[RowsName | dict[Name, RowsName] | None, CHECKED_BELOW]
    """Tasks of providers local, openenv and harness: a file (.jsonl, .json, .csv, .parquet), split -> file,
    `hf:ORG/NAME`, or `package.module:function` that returns them."""
    columns: Annotated[dict[Literal["prompt", "answer", "split"], str], CHECKED_BELOW]
    """The columns of `rows` that have the prompt, the answer and the split; dots lead into structs."""
    num_seeds: Count
    """provider openenv: reset seeds for each row; a task is a row with one of them."""
    variant: str | None
    """Name of the environment within the server. None means its first."""
    toolset: Name | None
    """provider openreward: a toolset of the server's SDK (codex, claude-code, hermes, ...) that each session has. Its
    tools replace the environment's tools of the same names."""
    overrides: Annotated[dict[EnvVarName, str | SecretSource | None], CHECKED_BELOW]
    """Variables of the environment's server (`serve`) or of its container in the catalog, such as OPENAI_BASE_URL of an
    environment's own model. A secret is `{from_env: VARIABLE}`. null means the variable of the same name."""
    train: SelectionSpec
    held_out: HeldOutSpec | None
    """None: nothing is held out, and nothing is evaluated here."""
    weight: Positive
    """Share in the mixture, relative to the other members."""
    max_turns: Count
    """Assistant messages per episode."""
    reward: Reward
    reward_fn: RewardFns | None
    """Functions of your own: one, or a list with weights. Each gets the EpisodeResult, or what its parameters name."""
    group_reward_fn: ModulePath | None
    """Function of your own from the settled episodes of one task in a step to a number or a dictionary for each."""
    group_score_weight: Number | None
    """provider openreward: factor of the environment's own scores of a group (`score_group`), added to the rewards."""
    judge: Annotated[JudgeSpec | None, BeforeValidator(with_defaults)]
    """A model that scores episodes by a rubric, alone or compared with those of their group; its score is added."""
    on_no_tool_call: OnNoToolCall
    on_malformed_call: OnMalformedCall
    tool_calls_per_turn: ToolCallsPerTurn
    dialect: DialectName | None
    """Form of tool calls in this environment. None means the model's."""
    system_prompt: str | None
    """System message before the environment's own prompt. None means no system message."""
    prompt: PromptSource
    """Prompt that the model reads: `prepared` is the task set's, which each session must repeat; `live` is that of the
    episode's own session, for environments that draw it anew."""
    limits: EnvLimits
    secrets: Annotated[dict[EnvVarName, SecretSource | None], CHECKED_BELOW]
    """Secrets of each session, by name. null means the variable of the same name (in upper case)."""
    allowed_origins: tuple[str, ...]
    """Origins beside the catalog's that may receive the API key and the secrets."""

    @property
    def secret_overrides(self) -> dict[str, str]:
        """Variable of the environment's server -> the variable that holds the secret."""
        secret = {
            name: value for name, value in self.overrides.items() if not isinstance(value, str)
        }
        return {name: source.from_env if source else name for name, source in secret.items()}

    @property
    def scores_groups(self) -> bool:
        """Returns whether an episode's reward is known only when its group has ended."""
        is_compared = self.judge is not None and self.judge.scoring is not JudgeScoring.POINTWISE
        return (
            is_compared or self.group_reward_fn is not None or self.group_score_weight is not None
        )

    @field_validator("provider", mode="after")
    @classmethod
    def _is_there(cls, provider: str, info: ValidationInfo) -> str:
        if ":" in provider or info.context == IN_JOB:
            return provider
        return checked_name(Kind.PROVIDER, provider, ", or package.module:Class")

    @field_validator("target", mode="after")
    @classmethod
    def _whole_path(cls, target: str | None) -> str | None:
        if target is not None and target.startswith(("./", "../")):
            return str(Path(target).absolute())
        return target

    @field_validator("options", mode="after")
    @classmethod
    def _options_of_the_provider(
        cls, options: dict[str, Any], info: ValidationInfo
    ) -> dict[str, Any]:
        provider = info.data.get("provider", ":")
        if ":" in provider or info.context == IN_JOB:
            return options
        return checked_options(Kind.PROVIDER, provider, options)

    def faults(self) -> Iterator[str]:
        for name, value in self.overrides.items():
            if isinstance(value, str) and looks_like_secret(name):
                yield f"overrides.{name} is a secret: name the variable that holds it, {{from_env: {name}}}"
        if self.overrides and self.serve is None and not CATALOG_NAME.fullmatch(self.target or ""):
            yield "overrides needs serve, or a target in the catalog; set them where that server is started"
        for url in (self.target or "", *self.allowed_origins):
            check_plain_url(url)
        for url in self.allowed_origins:
            check_http_url("allowed_origins:", url)
        fields = PROVIDER_FIELDS.get(self.provider)
        if fields is not None:
            for provider, names in PROVIDER_FIELDS.items():
                for name in names:
                    if name not in fields and not self._is_off(name):
                        yield f"{name} belongs to provider={provider}; this environment's is {self.provider}"
        yield from self._address_faults()
        if self.provider == "harness":
            yield from self._program_faults()

    def _is_off(self, name: str) -> bool:
        """Returns whether a field has the value that says nothing."""
        return getattr(self, name) in (None, {}, NEUTRAL.get(name))

    def _address_faults(self) -> Iterator[str]:
        ways = ADDRESSES.get(self.provider, {})
        if ways and sum(getattr(self, name) is not None for name in ways) != 1:
            yield "give exactly one of " + " and ".join(
                f"{name} ({what})" for name, what in ways.items()
            )
        if self.target is not None and self.provider == "openenv":
            check_http_url("target", self.target, ", and OpenEnv has no catalog")
        if (
            self.target is not None
            and self.provider == "openreward"
            and not CATALOG_NAME.fullmatch(self.target)
        ):
            check_http_url("target", self.target, " and no name in the catalog (Org/Name)")
        is_path = self.provider == "harbor" or (
            self.provider == "inspect" and ".py" in str(self.target)
        )
        if is_path and not str(self.target).startswith(("/", "~")):
            whole = Path(str(self.target)).absolute()
            yield f"target {self.target!r}: write the whole path, {whole}; stages run in another directory"
        if self.provider in ("harbor", "harness") and self.sandbox is None:
            yield f"provider={self.provider} needs sandbox: {', '.join(SandboxKind)} (none is this machine, without isolation)"
        if self.provider == "openenv" and self.rows is None:
            yield "provider=openenv needs rows, the prompts of its tasks (./prompts.jsonl)"
        has_package = self.provider in HOSTED or self.options.get("agent") is not None
        has_package |= self.sandbox is not None and self.sandbox.is_cloud
        if self.python is not None and self.serve is None and not has_package:
            yield "python is the interpreter of serve, and serve is null: set serve, or python=null"
        if (
            self.python is not None
            and "/" in self.python
            and not self.python.startswith(("/", "~"))
        ):
            yield f"python {self.python!r}: write the whole path; stages run in the outputs' directory"

    def _program_faults(self) -> Iterator[str]:
        if self.rows is not None and not self.options.get("grade"):
            yield "rows of provider=harness need options.grade: set it to a command that scores what the program left"
        has_server = self.serve is not None or not str(self.target or "/").startswith(("/", "~"))
        if has_server and self.options.get("agent") == "mini-swe-agent":
            yield (
                "options.agent=mini-swe-agent has no client of MCP for the tools of a server; set claude-code, codex,"
                " opencode or options.command"
            )
        if self.on_no_tool_call is OnNoToolCall.NUDGE:
            yield "on_no_tool_call=nudge: the program itself answers a message without a call (provider=harness)"
        if self.on_malformed_call is OnMalformedCall.STOP:
            yield "on_malformed_call=stop: a malformed call reaches the program as a text (provider=harness)"


class Environments(Section):
    """The mixture; a single environment is a mixture of one."""

    members: Annotated[dict[Name, EnvMember], Field(min_length=1)]

    @property
    def is_held_out(self) -> bool:
        """Returns whether any member keeps tasks back to evaluate on."""
        return any(member.held_out is not None for member in self.members.values())

    @property
    def has_curriculum(self) -> bool:
        """Returns whether any member's tasks are drawn by earlier rewards."""
        return any(member.train.curriculum is not None for member in self.members.values())

    @property
    def has_rows(self) -> bool:
        """Returns whether an episode may have several rows of tokens: its program rewrites its history."""
        return any(member.options.get("max_rows", 1) > 1 for member in self.members.values())

    @property
    def scores_groups(self) -> bool:
        """Returns whether any member has rewards of a group."""
        return any(member.scores_groups for member in self.members.values())
