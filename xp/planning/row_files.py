"""The files of rows of a spec: their packages, columns and answers, before anything is prepared."""

from __future__ import annotations

from functools import lru_cache

from xp.envs.config import EnvConfig
from xp.envs.graders import CHECKED, check_answers
from xp.envs.rows import line_of, load_rows, name_of
from xp.lib.codec import decode
from xp.lib.data_files import check_loader, is_set, names_of, path_of
from xp.lib.packages import require
from xp.planning.episode import episode_config
from xp.spec import EnvMember, LauncherName, RunSpec


def check_rows(spec: RunSpec) -> None:
    """Reads the files of rows as the stage `prepare` will, for the errors of `row_lines`."""
    row_lines(spec)


def row_lines(spec: RunSpec) -> list[str]:
    """One line for each environment with files of rows: their number, and the columns that are used.

    Raises:
        XpError: rows cannot be read or have no prompt, a ready grader cannot compare one of their answers, or a package
            is missing.
    """
    lines = []
    for name, member in spec.env.members.items():
        _check_packages(member, spec)
        sources = [source for source in names_of(member.rows) if not is_set(source)]
        files = [path for path in map(path_of, sources) if path is not None]
        if files:
            states = tuple(
                (file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()
            )
            lines.append(_line(episode_config(spec).members[name].model_dump_json(), states))
    return lines


@lru_cache(maxsize=64)
def _line(env: str, _states: tuple[tuple[int, int], ...]) -> str:
    """The line of an environment, as JSON; cached as long as the files' sizes and times stay, for points of a sweep."""
    config = decode(EnvConfig, env)
    assert config.rows is not None
    splits, columns = load_rows(config.rows, config.columns, has_pictures=config.images is not None)
    if (config.grader or "").startswith(CHECKED):
        check_answers(config, splits, name_of(config.rows), None)
    return line_of(config.name, splits, columns)


def _check_packages(member: EnvMember, spec: RunSpec) -> None:
    """Checks the packages of the prepare stage, which runs in xp's own Python with launcher=local."""
    if spec.launcher.name is not LauncherName.LOCAL:
        return
    for source in names_of(member.rows):
        check_loader(source)
    if member.grader == "math":
        require("env.grader=math", "math_verify")
