"""Reads the rows of environments while a run is planned, so that their faults cost no run."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache

from xp.envs.config import EnvConfig
from xp.envs.graders import check_answers
from xp.envs.rows import line_of, load_rows, name_of
from xp.errors import ExitCode, XpError
from xp.lib.codec import decode
from xp.lib.data_files import check_loader, is_set, place_of
from xp.lib.load import find_module
from xp.planning.stages.episode import env_config
from xp.spec import EnvMember, LauncherName, RunSpec


def row_lines(spec: RunSpec) -> list[str]:
    """One line for each environment with files of rows: their number, and the columns that are used.

    Raises:
        XpError: rows cannot be read or have no prompt, a ready grader cannot compare one of their answers, or a package
            is missing.
    """
    lines = []
    for name, member in spec.env.members.items():
        _check_packages(member, spec)
        names = [member.rows] if isinstance(member.rows, str) else [*(member.rows or {}).values()]
        if files := [place for one in names if not is_set(one) and (place := place_of(one)) is not None]:
            states = tuple((file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists())
            lines.append(_line(json.dumps(asdict(env_config(name, member, spec))), states))
    return lines


@lru_cache(maxsize=64)
def _line(env: str, states: tuple[tuple[int, int], ...]) -> str:
    """The line of an environment, as JSON; cached as long as the files' sizes and times stay, for points of a sweep."""
    del states
    config = decode(EnvConfig, env)
    assert config.rows is not None
    splits, columns = load_rows(config.rows, config.columns)
    check_answers(config, splits, name_of(config.rows))
    return line_of(config.name, splits, columns)


def _check_packages(member: EnvMember, spec: RunSpec) -> None:
    """Checks the packages of the prepare stage, which runs in xp's own Python with launcher=local."""
    if spec.launcher.name is not LauncherName.LOCAL:
        return
    if isinstance(member.rows, str):
        check_loader(member.rows)
    if member.grader == "math" and find_module("math_verify") is None:
        raise XpError(
            "env.grader=math needs the package math-verify: run `pip install math-verify==0.9.0` (xp's extra math)",
            ExitCode.RUNTIME,
        )
