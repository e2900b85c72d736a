"""Reads a task folder in Harbor's format (harbor 0.25); refuses tasks that xp cannot run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from xp.lib.digest import digest_of, file_digest
from xp.lib.text import word_list

CONFIG: Final = "task.toml"
INSTRUCTION: Final = "instruction.md"
TEST: Final = "test.sh"
CANARY: Final = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
"""A line that marks a benchmark's data, which Harbor removes from the prompt."""
IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,499}")
SCOPES: Final = ("environment", "agent", "verifier")
KNOWN: Final = {
    "environment": set(
        word_list("""
            build_timeout_sec docker_image os cpus memory_mb memory storage_mb storage env
            workdir network_mode allow_internet gpus mcp_servers skills_dir allowed_hosts
        """)
    ),
    "agent": {"timeout_sec", "user"},
    "verifier": {"timeout_sec", "env", "user"},
}
"""Fields that xp applies, or that have no effect if empty."""
MEMORY_UNITS: Final = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class BrokenTask(ValueError):
    """A folder that is not a task, or a task that xp cannot run."""


@dataclass(frozen=True)
class HarborTask:
    """One task. Times are in seconds."""

    folder: Path
    instruction: str
    image: str | None
    """Name of a published image. None means that it is built from `environment/Dockerfile`."""
    build_timeout_s: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    has_network: bool = True
    workdir: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command; `${NAME}` stands for a declared secret."""
    agent_timeout_s: float | None = None
    """Time limit of all commands of the model together. None means no limit."""
    agent_user: str | None = None
    verifier_timeout_s: float = 600.0
    verifier_environ: Mapping[str, str] = field(default_factory=dict)
    verifier_user: str | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def files(self) -> Path:
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    def digest(self) -> str:
        """Digest of all files except the solution, which no episode reads."""
        return folder_digest(self.folder)


def folder_digest(folder: Path) -> str:
    """Digest of a task's files; it changes with the instruction, the image and the tests."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    named = {file.relative_to(folder).as_posix(): file for file in files}
    return digest_of(
        {
            name: file_digest(file)
            for name, file in named.items()
            if not name.startswith("solution/")
        }
    )


def task_folders(folder: Path) -> Mapping[str, list[Path]]:
    """Split -> its folders with a task.toml, sorted by name: `train` and `test`, or all folders as `train`.

    Raises:
        BrokenTask: there is no such folder.
    """
    if not folder.is_dir():
        raise BrokenTask(f"{folder}: no such folder")
    splits = {
        name: list(_tasks_in(folder / name))
        for name in ("train", "test")
        if (folder / name).is_dir()
    }
    plain = list(_tasks_in(folder))
    if plain and any(splits.values()):
        raise BrokenTask(
            f"{folder} has tasks beside its folders {' and '.join(splits)}: move {plain[0].name} into one"
        )
    folders = {name: tasks for name, tasks in (splits or {"train": plain}).items() if tasks}
    if not folders:
        raise BrokenTask(f"{folder} has no folder with a {CONFIG}")
    return folders


def read_task(folder: Path) -> HarborTask:
    """Reads a task; raises BrokenTask with the reason."""
    try:
        config = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if config.get("steps"):  # Each step has an instruction and tests of its own.
            raise ValueError("it has [[steps]], and xp plays tasks of one step")
        instruction = _without_canary((folder / INSTRUCTION).read_text(encoding="utf-8")).strip()
        _check_tree(folder, folder.resolve(), frozenset())
        _check(folder, config, instruction)
        return _task(folder, instruction, *(config.get(name, {}) for name in SCOPES))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        if isinstance(error, OSError):
            text = f"{error.strerror}: {error.filename}"
        else:
            text = str(error)
        raise BrokenTask(f"task {folder.name}: {text}") from None


def _tasks_in(folder: Path) -> Iterator[Path]:
    for child in sorted(folder.iterdir()):
        if child.name not in ("train", "test") and (child / CONFIG).exists():
            yield child


def _task(
    folder: Path,
    instruction: str,
    environment: Mapping[str, Any],
    agent: Mapping[str, Any],
    verifier: Mapping[str, Any],
) -> HarborTask:
    network = environment.get("network_mode") or (
        "public" if environment.get("allow_internet", True) else "no-network"
    )
    return HarborTask(
        folder=folder,
        instruction=instruction,
        image=environment.get("docker_image"),
        build_timeout_s=float(environment.get("build_timeout_sec", 600.0)),
        cpus=None if environment.get("cpus") is None else float(environment["cpus"]),
        memory_mb=_megabytes(environment),
        has_network=network == "public",
        workdir=environment.get("workdir"),
        environ=_texts(environment.get("env", {})),
        agent_timeout_s=None if agent.get("timeout_sec") is None else float(agent["timeout_sec"]),
        agent_user=None if agent.get("user") is None else str(agent["user"]),
        verifier_timeout_s=float(verifier.get("timeout_sec", 600.0)),
        verifier_environ=_texts(verifier.get("env", {})),
        verifier_user=None if verifier.get("user") is None else str(verifier["user"]),
    )


def _check(folder: Path, config: Mapping[str, Any], instruction: str) -> None:
    if not instruction:
        raise ValueError(f"{INSTRUCTION} is empty")
    if not (folder / "tests" / TEST).is_file():
        raise ValueError(f"there is no tests/{TEST}")
    if (folder / "environment" / "docker-compose.yaml").exists():
        raise ValueError("it has a docker-compose.yaml, and xp starts one container of one image")
    for scope, known in KNOWN.items():
        strange = sorted(
            name for name, value in config.get(scope, {}).items() if name not in known and value
        )
        if strange:
            raise ValueError(f"[{scope}] {strange[0]}: xp does not apply it")
    environment = config.get("environment", {})
    for name in ("gpus", "mcp_servers", "skills_dir", "allowed_hosts"):
        if environment.get(name):
            raise ValueError(f"[environment] {name}: xp does not apply it")
    image = environment.get("docker_image")
    if image is not None and not (isinstance(image, str) and IMAGE.fullmatch(image)):
        raise ValueError(f"[environment] docker_image={image!r} is no name of an image")
    if str(environment.get("os", "linux")).lower() != "linux":
        raise ValueError(f"[environment] os={environment['os']}: xp runs Linux tasks")
    if environment.get("network_mode") not in (None, "public", "no-network"):
        raise ValueError("[environment] network_mode: xp has public and no-network")


def _check_tree(path: Path, root: Path, above: frozenset[Path]) -> None:
    """Raises ValueError for a link that leaves the task, is broken, or is circular."""
    target = path.resolve()
    if not target.is_relative_to(root):
        raise ValueError(
            f"{path.relative_to(root) if path.is_relative_to(root) else path.name} leads out of the task"
        )
    if not target.exists():
        raise ValueError(f"{path.name} is a link that leads nowhere")
    if target in above:
        raise ValueError(f"{path.name} is a link that leads round in a circle")
    if target.is_dir():
        for child in path.iterdir():
            _check_tree(child, root, above | {target})


def _without_canary(text: str) -> str:
    lines = text.split("\n")
    while lines and CANARY.match(lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _megabytes(environment: Mapping[str, Any]) -> int | None:
    if environment.get("memory_mb") is not None:
        return int(environment["memory_mb"])
    size = environment.get("memory")
    if not isinstance(size, str):
        return None
    number = size.strip()[:-1]
    unit = size.strip()[-1:].upper()
    if unit not in MEMORY_UNITS:
        raise ValueError(f"[environment] memory={size}: expected 1G, 512M, ...")
    return int(float(number) * MEMORY_UNITS[unit])


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    for name, value in values.items():
        if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is None:
            raise ValueError(f"env: {name!r} is no name of a variable")
        if "\0" in str(value):
            raise ValueError(f"env: {name} holds a zero byte")
    return {name: str(value) for name, value in values.items()}
