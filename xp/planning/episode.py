"""RunSpec -> the inputs of episodes: the mixture as an EpisodeConfig, the names of its secrets, and the user's code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from xp.engines.config import JudgeServer, VLLMServer
from xp.engines.probe import DEADLINE_S, START_TIMEOUT_S
from xp.envs.config import Chat, EnvConfig, EpisodeConfig, dialect_of
from xp.envs.judges import SERVER_KEY
from xp.envs.target import module_of
from xp.episode.rewards import Overlong
from xp.errors import ExitCode, XpError
from xp.lib.codec import from_value
from xp.lib.data_files import is_data
from xp.models.clock import CLOCK
from xp.plugins import Kind, in_job, shipped
from xp.secrets.redaction import resolve
from xp.spec import EnvMember, RunSpec
from xp.spec.env import READY
from xp.spec.judge import JudgeModel
from xp.tasks.request import is_found
from xp.worker.stage import Sampling
from xp.worker.token_budget import TokenBudget

CATALOG_KEY = "OPENREWARD_API_KEY"


def episode_config(spec: RunSpec) -> EpisodeConfig:
    """The mixture, for all stages that open sessions."""
    return EpisodeConfig({name: env_config(name, member, spec) for name, member in spec.env.members.items()})


_SHARED = {field.name for field in fields(EnvConfig)} & EnvMember.model_fields.keys()
"""Fields of a member that its EnvConfig has under the same name."""


def env_config(name: str, member: EnvMember, spec: RunSpec) -> EnvConfig:
    """One member of the mixture."""
    values = member.model_dump(include=_SHARED) | {
        "name": name,
        "provider": in_job(Kind.PROVIDER, member.provider),
        "dialect": in_job(Kind.DIALECT, member.dialect or spec.model.dialect),
        "grader": READY.get(member.grader or "", member.grader),
        "reward_fn": member.reward_fn and [one.model_dump() for one in member.reward_fn],
        "secrets": list(member.secrets),
        "overrides": {key: value for key, value in member.overrides.items() if isinstance(value, str)},
        "secret_overrides": _secret_overrides(member),
        "judge": _judge(member),
    }
    return from_value(EnvConfig, values)


def _judge(member: EnvMember) -> dict[str, Any] | None:
    if member.judge is None:
        return None
    values = member.judge.model_dump(exclude={"model": {"serve", "accelerators"}})
    if member.judge.model.serve is not None:
        values["model"] |= {"url": "", "key": SERVER_KEY}
    return values


def judge_server(spec: RunSpec, judge: JudgeModel, log: str, *, is_sglang: bool) -> JudgeServer:
    """The server of a judge, by SGLang or by vLLM."""
    is_on_cpu = spec.hardware.accelerator == "cpu"
    size = str(1 if is_on_cpu else judge.accelerators)
    # A request has a temperature and no other sampling parameter; the model's own defaults of these are not used.
    arguments: tuple[str, ...] = (
        ("--tp-size", size, "--sampling-defaults", "openai", "--skip-server-warmup", "--log-level-http", "warning")
        if is_sglang
        else ("--tensor-parallel-size", size, "--generation-config", "vllm", "--uvicorn-log-level", "warning")
    )
    if is_on_cpu:  # where vLLM's default is nearly the whole memory of the machine
        arguments += ("--gpu-memory-utilization", str(spec.backend.engine.memory_fraction))
    return JudgeServer(
        model=str(judge.serve),
        name=judge.name,
        is_sglang=is_sglang,
        server=VLLMServer(arguments, 0 if is_on_cpu else judge.accelerators, START_TIMEOUT_S, DEADLINE_S),
        trainer_accelerators=0 if is_on_cpu else spec.trainer_accelerators,
        log=log,
        grace_s=spec.launcher.grace_s,
        date=chat_of(spec).arguments.get(CLOCK),
    )


def _secret_overrides(member: EnvMember) -> dict[str, str]:
    """Variable of the environment's server -> variable at launch."""
    secret = {name: value for name, value in member.overrides.items() if not isinstance(value, str)}
    return {name: source.from_env if source else name for name, source in secret.items()}


def overlong(spec: RunSpec) -> Overlong | None:
    """The penalty for length of the training's episodes; None: there is none."""
    rule = spec.algorithm.overlong
    return None if rule is None else Overlong(spec.training.max_response_tokens, rule.buffer_tokens, rule.factor)


def budget_of(spec: RunSpec, *, evaluates: bool) -> TokenBudget:
    """Token budget of the training's episodes, or of evaluations."""
    training, evaluation = spec.training, spec.evaluation
    limits = (evaluation.max_tokens_per_turn, evaluation.max_response_tokens) if evaluates else (None, None)
    return TokenBudget(
        max_prompt_tokens=training.max_prompt_tokens,
        max_tokens_per_turn=limits[0] or training.max_tokens_per_turn,
        max_response_tokens=limits[1] or training.max_response_tokens,
    )


def sampling_of(spec: RunSpec, *, evaluates: bool) -> Sampling:
    """Sampling of the training's episodes, or of evaluations."""
    section = spec.evaluation if evaluates else spec.training
    names = ("temperature", "top_p", "top_k", *(() if evaluates else ("min_p", "repetition_penalty")))
    distribution = {name: getattr(section, name) for name in names}
    budget = asdict(budget_of(spec, evaluates=evaluates))
    return Sampling(**budget, **distribution, seed=spec.seed, stop=spec.training.stop)


def chat_of(spec: RunSpec) -> Chat:
    """Rendering of dialogues for the model, in every stage that generates."""
    arguments = {name: value for name, value in spec.model.chat_template.items() if value is not None}
    dialect = dialect_of(in_job(Kind.DIALECT, spec.model.dialect))
    return Chat(arguments, spec.model.tools_prompt, dialect, spec.record_prompts)


def episode_secrets(spec: RunSpec) -> dict[str, str]:
    """Variable in the job -> variable at launch, over all members; raises XpError if two members differ."""
    variables: dict[str, str] = {CATALOG_KEY: CATALOG_KEY} if spec.upload_rollouts else {}
    for member_name, member in spec.env.members.items():
        of_member = {name: source.from_env if source else name.upper() for name, source in member.secrets.items()}
        if member.judge is not None and member.judge.model.key is not None:
            of_member.setdefault(member.judge.model.key, member.judge.model.key)
        of_member |= {one: one for one in _secret_overrides(member).values() if one not in of_member}
        if needs_catalog_key(member):
            of_member.setdefault(CATALOG_KEY, CATALOG_KEY)
        for name, variable in of_member.items():
            if variables.setdefault(name, variable) != variable:
                raise XpError(
                    f"env.members.{member_name}.secrets.{name}: another member reads it from {variables[name]}, this"
                    f" one from {variable}; use one variable",
                    ExitCode.CONFIG,
                )
    return variables


def user_modules(spec: RunSpec) -> tuple[str, ...]:
    """Top-level modules of the user and of plugins that a run loads; the run ships a copy of them, as of xp."""
    named = [
        name
        for member in spec.env.members.values()
        for name in (member.serve, member.provider, member.grader, member.rows)
        if isinstance(name, str)
        and not is_data(name)
        and (name != member.serve or member.python is None or is_found(name))
    ]
    named += [one.fn for member in spec.env.members.values() for one in member.reward_fn or ()]
    named += [member.group_reward_fn or "" for member in spec.env.members.values()]
    named += [spec.algorithm.advantage_fn or "", (spec.sft.data or "").partition("solve:")[2]]
    tops = {name.partition(":")[0].partition(".")[0] for name in named if ":" in name}
    tops |= _packages_here(spec)
    tops |= {top for kind, name in used_plugins(spec) if (top := shipped(kind, name)) is not None}
    return tuple(sorted(tops - {"xp"}))


def _packages_here(spec: RunSpec) -> set[str]:
    """Environment packages in xp's own Python, of which a job gets a copy."""
    targets = {member.target or "" for member in spec.env.members.values() if member.provider == "verifiers"}
    return {module for module in map(module_of, targets) if is_found(module)}


def used_plugins(spec: RunSpec) -> Iterator[tuple[Kind, str]]:
    """All names in a spec that may come from plugins."""
    yield Kind.BACKEND, spec.backend.name
    yield Kind.LAUNCHER, spec.launcher.name
    yield Kind.DIALECT, spec.model.dialect
    for member in spec.env.members.values():
        yield Kind.PROVIDER, member.provider
        if member.dialect is not None:
            yield Kind.DIALECT, member.dialect


def needs_catalog_key(member: EnvMember) -> bool:
    """Returns whether the environment is in the OpenReward catalog, which needs an account."""
    return member.provider == "openreward" and member.target is not None and "://" not in member.target


def episode_environ(spec: RunSpec) -> dict[str, str]:
    """This process's variables, and the declared secrets under their names in an episode."""
    secrets = episode_secrets(spec)
    values = resolve(sorted(set(secrets.values())))
    return {**os.environ, **{name: values[variable] for name, variable in secrets.items()}}


def named_code(spec: RunSpec) -> list[str]:
    """One line for each kind of code that a spec names; the code is not looked up, so it may be in another Python.

    Check it before you run another person's spec: it may name any code.
    """
    members = list(spec.env.members.values())
    modules = sorted({*user_modules(spec), *(name for one in members for name in _modules_elsewhere(one))} - {"xp"})
    programs = [("Python of the jobs", spec.backend.runtime.python), ("image of the jobs", spec.backend.runtime.image)]
    programs += [("Python of an environment", one.python) for one in members]
    programs += [("image of an environment", one.image) for one in members]
    tasks = [one.target for one in members if one.provider == "inspect" and one.target is not None]
    folders = [one.target for one in members if one.provider == "harbor" and one.target is not None]
    judges = [one.judge.model for one in members if one.judge is not None]
    return [
        *([f"would import modules: {', '.join(modules)}"] if modules else []),
        *(f"would import the task of inspect_ai: {target}" for target in dict.fromkeys(tasks)),
        *(f"would run the programs of the tasks in: {target}" for target in dict.fromkeys(folders)),
        *(f"would set in an environment's server: {', '.join(one.overrides)}" for one in members if one.overrides),
        *(
            f"would send tasks, answers and {one.key or 'no key'} to the judge at {one.url}"
            for one in judges
            if one.url
        ),
        *(f"would start the {what}: {name}" for what, name in dict.fromkeys(programs) if name is not None),
        *(
            f"would pass this to the trainer, which may import it: {place}.overrides.{key}={value}"
            for place, keys in (("backend", spec.backend.overrides), ("sft", spec.sft.overrides))
            for key, value in keys.items()
            if _may_name_code(key, value)
        ),
    ]


def _may_name_code(key: str, value: Any) -> bool:
    """Returns whether a trainer may import the value of a native key: a dotted name, a file, or several values."""
    if "trust" in key or not isinstance(value, str):
        return isinstance(value, Sequence | Mapping) or ("trust" in key and value not in (False, None))
    return "." in value or ":" in value


def _modules_elsewhere(member: EnvMember) -> Iterator[str]:
    """Top-level modules that the environment's own Python imports."""
    if member.serve is not None:
        yield member.serve.partition(":")[0].partition(".")[0]
    if member.provider == "verifiers" and member.target is not None:
        yield module_of(member.target)
