"""Sections of a spec for tests of what runs below the wall, with the values of `conf/` where a test names none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from xp.envs.config import EnvConfig
from xp.episode.rewards import Overlong
from xp.lib.codec import IN_JOB
from xp.spec import (
    Distill,
    HeldOutSpec,
    Model,
    Overlap,
    Preparation,
    RunSpec,
    Sampling,
    Section,
    SelectionSpec,
)
from xp.spec.algorithm import OverlongSpec
from xp.spec.dialect import Dialect, ToolsPrompt
from xp.spec.env import Reduction, Reward
from xp.tasks.config import MemberConfig, PrepareConfig
from xp.worker.places import RunPaths
from xp.worker.stage import StageConfig

T = TypeVar("T")
CONF = Path(__file__).parents[2] / "conf"
LIMITS = ("max_prompt_tokens", "max_tokens_per_turn", "max_response_tokens")


def replace(value: T, **changes: Any) -> T:
    """`dataclasses.replace`, for sections too."""
    if isinstance(value, Section):
        return value.model_copy(update=changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]


def environment(**changes: Any) -> EnvConfig:
    """An environment of `conf/env/_base.yaml`; changes are JSON values."""
    values = yaml.safe_load((CONF / "env" / "_base.yaml").read_text())
    values |= {"dialect": "hermes"} | changes
    return EnvConfig.model_validate_json(json.dumps(values), context=IN_JOB)


def reward_rule(reduction: Reduction, **changes: Any) -> Reward:
    values: dict[str, Any] = {"nonterminal": None, "minimum": None, "maximum": None}
    return Reward(reduction=reduction, **values | changes)


def sampling_of(prompt: int, turn: int, response: int, **changes: Any) -> Sampling:
    """Sampling with these token limits, from the model's own distribution; an evaluation's may be greedy."""
    values: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    limits = {
        "max_prompt_tokens": prompt,
        "max_tokens_per_turn": turn,
        "max_response_tokens": response,
    }
    return Sampling(**values | {"stop": ()} | limits).model_copy(update=changes)


def chat_model(**changes: Any) -> Model:
    """A model's section with the fields that its chat needs."""
    values: dict[str, Any] = {
        "chat_template": {},
        "template": None,
        "tools_prompt": ToolsPrompt.TEMPLATE,
        "dialect": Dialect.HERMES,
    }
    return Model.model_construct(**values | changes)


PLACES = RunPaths("runs/r", 1, "tasks/t")


def distill(teacher: str, **changes: Any) -> Distill:
    values = {"revision": None, "url": None, "key": None, "coef": 1.0, "beside_reward": False}
    return Distill(teacher=teacher, **values | changes)


def overlong(longest: int, buffer_tokens: int, factor: float) -> Overlong:
    return Overlong(OverlongSpec(buffer_tokens=buffer_tokens, factor=factor), longest)


@cache
def _composed(words: tuple[str, ...]) -> RunSpec:
    from xp.composition import compose

    return compose(list(words))


def run_spec(*words: str, **keys: Any) -> RunSpec:
    """The spec of the default groups, or of these words; `training__group_size=4` replaces the value of one key."""
    spec = _composed(words)
    for path, value in keys.items():
        spec = _with(spec, path.split("__"), value)
    return spec


def _with(section: Any, path: list[str], value: Any) -> Any:
    inner = _with(getattr(section, path[0]), path[1:], value) if path[1:] else value
    return section.model_copy(update={path[0]: inner})


def selection(
    split: tuple[str, ...] = ("train",),
    num_tasks: int | None = None,
    indices: tuple[int, ...] | None = None,
    shuffle: bool = False,
    seed: int = 0,
) -> SelectionSpec:
    values: dict[str, Any] = {
        "split": split,
        "num_tasks": num_tasks,
        "indices": indices,
        "shuffle": shuffle,
        "seed": seed,
    }
    curriculum: dict[str, Any] = {
        "curriculum": None,
        "curriculum_bounds": (0.1, 0.9),
        "curriculum_exploration": 0.25,
        "curriculum_forget": None,
    }
    values |= {"profile": None, "pass_rate": None, "easy_first": False}
    return SelectionSpec.model_construct(**values, **curriculum)


def held_out_rule(
    split: str | None = None, *, may_overlap: bool = False, **changes: Any
) -> HeldOutSpec:
    """A rule of held-out tasks; without a fraction, a share is everything, which the spec itself does not allow."""
    values: dict[str, Any] = {
        "num_tasks": None,
        "indices": None,
        "shuffle": False,
        "seed": 0,
    }
    values |= {"fraction": 1.0 if split is None else 0.5}
    overlap = Overlap.ALLOWED if may_overlap else Overlap.FORBIDDEN
    return HeldOutSpec.model_construct(split=split, overlap=overlap, **values | changes)


def member_of(
    env: EnvConfig,
    train: SelectionSpec,
    held_out: HeldOutSpec | None = None,
    weight: float = 1.0,
    **changes: Any,
) -> MemberConfig:
    return MemberConfig(replace(env, train=train, held_out=held_out, weight=weight), **changes)


def changed_member(member: MemberConfig, **changes: Any) -> MemberConfig:
    """A member with other fields, of its own or of its environment."""
    own = {name: changes.pop(name) for name in ("env", "source", "chosen") if name in changes}
    return replace(member, **own | {"env": replace(own.get("env", member.env), **changes)})


def prepare_of(
    members: Mapping[str, MemberConfig],
    allow_missing_fraction: float = 0.0,
    concurrency: int = 8,
    **changes: Any,
) -> PrepareConfig:
    preparation = Preparation(
        allow_missing_fraction=allow_missing_fraction, concurrency=concurrency
    )
    return PrepareConfig(members, preparation, **changes)


Config = TypeVar("Config", bound=StageConfig)


def with_keys(config: Config, **keys: Any) -> Config:
    """A stage's config with other values of its spec; `keys` as `run_spec` takes them."""
    spec = config.spec
    for path, value in keys.items():
        spec = _with(spec, path.split("__"), value)
    return replace(config, spec=spec)


def with_model(config: Config, path: Path | str) -> Config:
    """A stage's config whose policy is in this directory."""
    return with_keys(config, model__path=str(path), model__revision=None)


def unevaluated(spec: RunSpec) -> RunSpec:
    """The same spec without held-out tasks."""
    members = {name: replace(member, held_out=None) for name, member in spec.env.members.items()}
    return replace(spec, env=replace(spec.env, members=members))


def limited(
    sampling: Sampling | None = None, held_out: Sampling | None = None, **keys: Any
) -> RunSpec:
    """`run_spec` with these token limits in training and in evaluations."""
    keys |= {
        f"training__{name}": getattr(sampling, name) for name in LIMITS if sampling is not None
    }
    keys |= {
        f"evaluation__{name}": getattr(held_out, name)
        for name in LIMITS[1:]
        if held_out is not None
    }
    return run_spec(**keys)
