"""RunSpec -> the inputs of episodes: the mixture as an EpisodeConfig, the names of its secrets, and the user's code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.envs import picture_store
from xp.envs.config import EnvConfig, EpisodeConfig
from xp.envs.target import module_of
from xp.errors import XpError
from xp.fields.shared import is_on_cpu
from xp.lib.data_files import is_data, names_of
from xp.lib.models.clock import CLOCK
from xp.lib.plugins import Kind, in_job, shipped
from xp.lib.secrets.redaction import resolve
from xp.planning.engine_arguments import num_accelerators
from xp.spec import EnvMember, RunSpec
from xp.spec.env import READY
from xp.spec.judge import JudgeModel
from xp.tasks.request import is_found
from xp.worker.engines.config import DEADLINE_S, START_TIMEOUT_S, JudgeServer, VLLMServer

CATALOG_KEY = "OPENREWARD_API_KEY"
HARNESS_PROGRAMS = ("command", "agent", "setup", "grade")
"""Options of the provider harness that name programs."""


def spec_in_job(spec: RunSpec) -> RunSpec:
    """The spec as a job's programs read it: plugins and ready graders by their code, paths from the outputs root."""
    model = spec.model.model_copy(update={"dialect": in_job(Kind.DIALECT, spec.model.dialect)})
    members = {
        name: member.model_copy(
            update={
                "provider": in_job(Kind.PROVIDER, member.provider),
                "dialect": in_job(Kind.DIALECT, member.dialect or spec.model.dialect),
                "grader": READY.get(member.grader or "", member.grader),
            }
        )
        for name, member in spec.env.members.items()
    }
    env = spec.env.model_copy(update={"members": members})
    return spec.model_copy(update={"model": model, "env": env, "outputs": "."})


def episode_config(spec: RunSpec) -> EpisodeConfig:
    """The mixture, for all stages that open sessions."""
    members = spec_in_job(spec).env.members
    return EpisodeConfig(
        {
            name: EnvConfig.model_construct(name=name, images=spec.model.images, **dict(member))
            for name, member in members.items()
        }
    )


def judge_server(spec: RunSpec, judge: JudgeModel, log: str, *, is_sglang: bool) -> JudgeServer:
    """The server of a judge, by SGLang or by vLLM."""
    accelerators = 0 if is_on_cpu(spec) else judge.accelerators
    size = str(max(1, accelerators))
    # A request has a temperature and no other sampling parameter; the model's own defaults of these are not used.
    if is_sglang:
        arguments = ["--tp-size", size, "--sampling-defaults", "openai", "--skip-server-warmup"]
        arguments += ["--log-level-http", "warning"]
    else:
        arguments = ["--tensor-parallel-size", size, "--generation-config", "vllm"]
        arguments += ["--uvicorn-log-level", "warning"]
    if is_on_cpu(spec):  # where vLLM's default is nearly the whole memory of the machine
        arguments += ["--gpu-memory-utilization", str(spec.backend.engine.memory_fraction)]
    return JudgeServer(
        judge=judge,
        launcher=spec.launcher,
        is_sglang=is_sglang,
        server=VLLMServer(tuple(arguments), accelerators, START_TIMEOUT_S, DEADLINE_S),
        trainer_accelerators=num_accelerators(spec),
        log=log,
        date=spec.model.template_arguments.get(CLOCK),
    )


def episode_secrets(spec: RunSpec) -> dict[str, str]:
    """Variable in the job -> variable at launch, over all members; raises XpError if two members differ."""
    variables: dict[str, str] = {}
    if spec.upload_rollouts:
        variables[CATALOG_KEY] = CATALOG_KEY
    for member_name, member in spec.env.members.items():
        of_member = {
            name: source.from_env if source else name.upper()
            for name, source in member.secrets.items()
        }
        if member.judge is not None and member.judge.model.key is not None:
            of_member.setdefault(member.judge.model.key, member.judge.model.key)
        for override in member.secret_overrides.values():
            of_member.setdefault(override, override)
        if needs_catalog_key(member):
            of_member.setdefault(CATALOG_KEY, CATALOG_KEY)
        for name, variable in of_member.items():
            if variables.setdefault(name, variable) != variable:
                raise XpError(
                    f"env.members.{member_name}.secrets.{name}: another member reads it from {variables[name]}, this"
                    f" one from {variable}; use one variable"
                )
    return variables


def user_modules(spec: RunSpec) -> tuple[str, ...]:
    """Top-level modules of the user and of plugins that a run loads; the run ships a copy of them, as of xp."""
    named = [spec.algorithm.advantage_fn, (spec.sft.data or "").partition("solve:")[2]]
    tops = set[str]()
    for member in spec.env.members.values():
        named += [member.provider, member.grader, member.group_reward_fn, member.train.curriculum]
        named += [name for name in names_of(member.rows) if not is_data(name)]
        named += [function.fn for function in member.reward_fn or ()]
        if member.python is None or is_found(member.serve or ""):
            named.append(member.serve)
        # An environment package in xp's own Python, of which a job gets a copy.
        package = module_of(member.target or "")
        if member.provider == "verifiers" and is_found(package):
            tops.add(package)
    tops |= {_top(name) for name in named if name and ":" in name}
    shipped_tops = {shipped(kind, name) for kind, name in used_plugins(spec)}
    tops |= {top for top in shipped_tops if top is not None}
    return tuple(sorted(tops - {"xp"}))


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
    target = member.target or "://"
    return (
        member.provider in ("openreward", "harness")
        and "://" not in target
        and not target.startswith(("/", "~"))
    )


def episode_environ(spec: RunSpec) -> dict[str, str]:
    """This process's variables, and the declared secrets under their names in an episode."""
    secrets = episode_secrets(spec)
    values = resolve(sorted(set(secrets.values())))
    store = str(Path(spec.outputs).absolute() / picture_store.DIRECTORY)
    secret_values = {name: values[variable] for name, variable in secrets.items()}
    return {**os.environ, picture_store.VARIABLE: store, **secret_values}


def named_code(spec: RunSpec) -> list[str]:
    """One line for each kind of code that a spec names; the code is not looked up, so it may be in another Python.

    Check it before you run another person's spec: it may name any code.
    """
    members = list(spec.env.members.values())
    modules = sorted(
        {*user_modules(spec), *(name for member in members for name in _modules_elsewhere(member))}
        - {"xp"}
    )
    programs = [
        ("Python of the jobs", spec.backend.runtime.python),
        ("image of the jobs", spec.backend.runtime.image),
    ]
    tasks = []
    folders = []
    for member in members:
        programs.append(("Python of an environment", member.python))
        programs.append(("image of an environment", member.image))
        if member.provider == "inspect":
            tasks.append(member.target)
        if member.provider in ("harbor", "harness") and member.target is not None:
            folders.append(member.target)
        if member.provider == "harness":
            programs += [("program", member.options[name]) for name in HARNESS_PROGRAMS]
            programs.append(("image of an environment", member.options["image"]))
    judges = [member.judge.model for member in members if member.judge is not None]
    return [
        *([f"would import modules: {', '.join(modules)}"] if modules else []),
        *(f"would run in each job of Slurm: {line}" for line in spec.launcher.setup or ()),
        *(f"would import the task of inspect_ai: {target}" for target in dict.fromkeys(tasks)),
        *(f"would run the programs of the tasks in: {target}" for target in dict.fromkeys(folders)),
        *(
            f"would set in an environment's server: {', '.join(member.overrides)}"
            for member in members
            if member.overrides
        ),
        *(
            f"would send tasks, answers and {judge.key or 'no key'} to the judge at {judge.url}"
            for judge in judges
            if judge.url
        ),
        *(
            f"would start the {what}: {name}"
            for what, name in dict.fromkeys(programs)
            if name is not None
        ),
        *(
            f"would pass this to the trainer, which may import it: {section}.overrides.{key}={value}"
            for section, keys in (("backend", spec.backend.overrides), ("sft", spec.sft.overrides))
            for key, value in keys.items()
            if _may_name_code(key, value)
        ),
    ]


def _may_name_code(key: str, value: Any) -> bool:
    """Returns whether a trainer may import the value of a native key: a dotted name, a file, or several values."""
    if "trust" in key:
        return value not in (False, None)
    if isinstance(value, str):
        return "." in value or ":" in value
    return isinstance(value, Sequence | Mapping)


def _top(name: str) -> str:
    """Top-level module of `package.module:name`."""
    return name.partition(":")[0].partition(".")[0]


def _modules_elsewhere(member: EnvMember) -> Iterator[str]:
    """Top-level modules that the environment's own Python imports."""
    if member.serve is not None:
        yield _top(member.serve)
    if member.provider == "verifiers" and member.target is not None:
        yield module_of(member.target)
