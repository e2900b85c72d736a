"""Computes a task set's key before it exists: the canonical request, and the digest of local environment code.

Nothing heavy is imported, because the control plane computes the key while it plans.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from xp.envs.config import EnvConfig, EpisodeConfig
from xp.envs.target import module_of
from xp.errors import XpError
from xp.lib.code_files import code_files, code_locations, find_module, with_imports
from xp.lib.data_files import data_of, files_in, is_data, names_of, path_in
from xp.lib.digest import digest_of, file_digest
from xp.lib.facts import file_fact
from xp.lib.plugins import CONTRIB, Kind, load
from xp.spec import HeldOutSpec, SelectionSpec
from xp.spec.dialect import Dialect
from xp.spec.env import GraderForm
from xp.tasks.config import MemberConfig, PrepareConfig

FORMAT = 4
"""Version of the rows' schema and the rendering of prompts; increase it with every change, so that older sets are not
used."""

SERVER = ("provider", "target", "serve", "variant", "source", "options")
"""Fields of a member's canonical request that say which server has the tasks, whatever scores them."""
CODE_OF_TARGET = ("harbor", "harness", "inspect", "verifiers")
"""Providers whose target is code that computes rewards."""

OWN_PACKAGE = "xp"
"""Package whose modules count by their own package alone; otherwise every change of xp would make all tasks anew."""

VERSION_NAME = "TASKS_VERSION"
"""Name of a module's variable with the version of its tasks, independent of other changes of its package."""


def canonical_request(config: PrepareConfig) -> dict[str, Any]:
    """Exactly the values that determine the content of a set, as JSON values."""
    members = {name: _canonical_member(member) for name, member in sorted(config.members.items())}
    return {"format": FORMAT, "members": members}


def request_key(config: PrepareConfig) -> str:
    """Name of the set's directory in the store."""
    return key_of(canonical_request(config))


def key_of(request: Mapping[str, Any]) -> str:
    return digest_of(request)[:20]


def _canonical_member(member: MemberConfig) -> dict[str, Any]:
    """A member's part of the canonical request.

    Limits, rewards, turns, secrets, origins, `python` and `sandbox` are excluded, since they do not change the tasks.
    The dialect is included because a text dialect keeps tools out of the rows, and the weight because it is a column.
    Rare fields are included only if they are set, so that the keys of other environments do not change.
    """
    env = member.env
    splits = list(member.train.split)
    rare = {
        "image": env.image,
        "grader": env.grader,
        "env_class": env.env_class,
        "rows": _canonical_rows(env.rows),
        "columns": dict(env.columns) or None,
        "grader_form": None if env.grader_form is GraderForm.XP else env.grader_form,
        "grader_args": dict(env.grader_args) or None,
        "num_seeds": env.num_seeds if env.num_seeds > 1 else None,
        "options": dict(env.options) or None,
        "toolset": env.toolset,
        "text_actions": True if env.dialect is Dialect.ACTION else None,
        "pictures": None if env.images is None else True,
    }
    return {name: value for name, value in rare.items() if value is not None} | {
        "provider": env.provider,
        "target": env.target,
        "serve": env.serve,
        "variant": env.variant,
        "source": member.source,
        "system_prompt": env.system_prompt,
        "weight": float(env.weight),
        "train": {"split": splits[0] if len(splits) == 1 else splits}
        | _canonical_choice(member.train),
        "held_out": None
        if env.held_out is None
        else _canonical_rule(env.held_out, member.train.split),
    }


def _canonical_rows(rows: str | Mapping[str, str] | None) -> Any:
    """The rows without directories, since the digest of a file is in `source`."""
    if isinstance(rows, Mapping):
        return {split: _canonical_rows(name) for split, name in rows.items()}
    if rows is None or path_in(rows) is None:
        return rows
    return Path(rows).name


def _canonical_choice(choice: SelectionSpec | HeldOutSpec) -> dict[str, Any]:
    if choice.indices is not None:
        return {"indices": list(choice.indices)}
    seed = choice.seed if choice.shuffle else None
    return {"num_tasks": choice.num_tasks, "shuffle": choice.shuffle, "seed": seed}


def _canonical_rule(held_out: HeldOutSpec, train: tuple[str, ...]) -> dict[str, Any]:
    """The rule of the held-out tasks, without its result, which depends on the environment."""
    rule = {"split": held_out.split} | _canonical_choice(held_out)
    if held_out.may_overlap:
        rule |= {"overlap": "allowed"}
    is_in_train = held_out.split in train and not held_out.may_overlap and held_out.indices is None
    if held_out.split is None or is_in_train:
        rule |= {"seed": held_out.seed, "share_by_rank": held_out.fraction}
    return rule


def identities(config: PrepareConfig) -> dict[str, str]:
    """Member -> identity of its environment; two members on one environment share their held-out tasks."""
    members = canonical_request(config)["members"]
    return {
        member: digest_of([request.get(name) for name in SERVER])
        for member, request in members.items()
    }


def with_sources(config: PrepareConfig) -> PrepareConfig:
    """The config with each member's `source`; the only step from spec to key that reads files."""
    members = {
        name: replace(member, source=source_digest(member.env))
        for name, member in config.members.items()
    }
    return replace(config, members=members)


def source_digest(env: EnvConfig) -> str | None:
    """Digest of an environment's local code and rows (all its `module:name`), without running the code.

    All files of the module's top-level package count (its file, if it is not a package), and those of the user's
    modules that it imports: the files that a run copies (`xp.lib.code_files`). If a module declares a version of its
    tasks (`TASKS_VERSION = "1"` at the top level), only the version counts.
    """
    named = _named(env)
    code = None
    if env.provider in CONTRIB[Kind.PROVIDER]:
        provider = load(Kind.PROVIDER, env.provider)
        if hasattr(provider, "source_digest"):
            code = cast("str | None", provider.source_digest(env))
    data = data_of(env.rows)
    if not named and not data:
        return code
    digests = [_module_digest(name.partition(":")[0]) for name in named]
    for source in data:
        if not source.exists():
            raise XpError(f"rows {source}: there is no such file")
        digests.append(
            digest_of(
                {str(file.relative_to(source)): _file_digest(file) for file in files_in(source)}
            )
        )
    return digest_of(digests if code is None else [*digests, code])


def scoring(config: EpisodeConfig) -> dict[str, dict[str, Any]]:
    """Member -> what decides its rewards, by key: rewards are on one scale only where all of it is equal."""
    return {name: _scoring(env) for name, env in config.members.items()}


def _scoring(env: EnvConfig) -> dict[str, Any]:
    functions = {function.fn: function.weight for function in env.reward_fn or ()}
    named = (env.serve, env.grader, env.provider, env.group_reward_fn, *functions)
    code = {
        f"code of {name}": code_digest(name)
        for name in named
        if name and ":" in name and is_found(name)
    }
    if env.provider in CODE_OF_TARGET:
        code[f"code of {env.target or env.provider}"] = source_digest(env) or ""
    judge = None
    if env.judge is not None:
        judge = env.judge.model_dump(mode="json")
        judge["model"] = {
            name: judge["model"][name] for name in ("name", "temperature", "max_tokens")
        }
    rule = env.reward.model_dump(mode="json")
    keys = {
        "serve": env.serve,
        "env_class": env.env_class,
        "reward_fn": functions or None,
        "group_reward_fn": env.group_reward_fn,
        "group_score_weight": env.group_score_weight,
        "judge": judge,
        "grader": env.grader,
        "grader_form": env.grader_form,
        "grader_args": dict(env.grader_args),
        **{f"reward.{key}": value for key, value in rule.items()},
        "overrides": {**env.overrides, **env.secret_overrides} or None,
        # Judges among them.
        "options": {key: value for key, value in env.options.items() if key != "prices"},
    }
    return {f"env.{key}": value for key, value in keys.items()} | code


def _named(env: EnvConfig) -> list[str]:
    """The local code that an environment names."""
    rows = [name for name in names_of(env.rows) if not is_data(name)]
    names = [env.serve, env.provider, env.grader, *rows]
    named = [name for name in names if name is not None and ":" in name]
    if env.python is not None and env.serve is not None and not is_found(env.serve):
        named.remove(env.serve)
    if env.provider == "verifiers" and env.target is not None and is_found(module_of(env.target)):
        named.append(module_of(env.target))
    return named


def is_found(name: str) -> bool:
    """Returns whether this interpreter finds the module of `module:name`; another one (`python`) may have it."""
    return find_module(name.partition(":")[0]) is not None


def code_digest(name: str) -> str:
    """Digest of the code of a `module:name`, whatever version its tasks declare; raises XpError if it is not found."""
    return _files_digest(_origin(name.partition(":")[0]))


def _module_digest(module: str) -> str:
    origin = _origin(module)
    version = _version_in(origin.file.read_bytes())
    if version is not None:
        return digest_of({"module": module, VERSION_NAME: version})
    return _files_digest(origin)


class _Origin(NamedTuple):
    file: Path
    location: Path
    """Directory of which all files count, or the file, if it counts alone."""


def _origin(module: str) -> _Origin:
    """Place of a module's code; raises XpError if there is none."""
    spec = find_module(module)
    if spec is None or spec.origin is None:
        raise XpError(
            f"module {module!r} is not on the Python path, so its code cannot be read\n"
            "start xp in the directory that holds it, install it, or correct the name"
        )
    file = Path(spec.origin)
    top = module.partition(".")[0]
    if top == OWN_PACKAGE and top != module:
        return _Origin(file, file.parent)
    locations = code_locations(find_module(top) or spec)
    return _Origin(
        file, next((location for location in locations if file.is_relative_to(location)), file)
    )


def _files_digest(origin: _Origin) -> str:
    locations = with_imports([origin.location])
    files = (
        (file.relative_to(location.parent), file)
        for location in locations
        for file in code_files(location)
    )
    return digest_of({name.as_posix(): _file_digest(file) for name, file in files})


@lru_cache(maxsize=64)
def _version_in(code: bytes) -> str | None:
    """Version of the tasks that a module declares at its top level; it is parsed, not run. A sweep needs it often."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError):
        return None
    for statement in statements:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(name), *_], value=ast.Constant(version))
                | ast.AnnAssign(target=ast.Name(name), value=ast.Constant(version))
            ) if name == VERSION_NAME:
                return str(version)
    return None


@file_fact
def _file_digest(file: Path) -> str:
    """Digest of the whole file, for all points of a sweep."""
    return file_digest(file)
