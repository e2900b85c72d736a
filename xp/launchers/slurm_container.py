"""Starts a stage of a batch job in its image: by options of srun (pyxis), or by apptainer's command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.job import Job
from xp.launchers import secrets_files
from xp.launchers.base import Context
from xp.launchers.cluster import ask
from xp.spec.place import Container, LauncherSpec

SEPARATORS = (",", ":")


def mounts(context: Context, secrets: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Paths that a stage sees as they are: the outputs root, what holds its secrets, and the models' cache.

    Args:
        context: where the stage belongs.
        secrets: of `secrets_places`.
        environ: of this process.
    """
    cache = environ.get("HF_HOME")
    return [str(context.outputs), *secrets, *([cache] if cache and Path(cache).is_dir() else [])]


def secrets_places(context: Context, file: str | None, *, has_own: bool) -> list[str]:
    """Paths that hold a stage's secrets.

    Args:
        context: where the stage belongs.
        file: `launcher.secrets_file`.
        has_own: whether xp writes a file or a Ray token for the stage. Without one there may be no directory, and a
            container does not start without a path that it is to mount.
    """
    return [*([file] if file else []), *([str(secrets_files.directory() / context.run_id)] if has_own else [])]


def check_container(spec: LauncherSpec, context: Context) -> None:
    """Raise XpError(RUNTIME) for a Slurm without pyxis, and for a path that no option can name."""
    for path in mounts(context, secrets_places(context, spec.secrets_file, has_own=True), os.environ):
        if any(one in path for one in SEPARATORS):
            raise XpError(f"launcher.container: {path} cannot be mounted: it has a comma or a colon", ExitCode.RUNTIME)
    if spec.container is Container.PYXIS and "--container-image" not in ask(["srun", "--help"], timeout_s=60.0):
        raise XpError(
            "launcher.container=pyxis: this Slurm has no pyxis (its srun knows no --container-image); set"
            " launcher.container=apptainer, or ask for the plugin",
            ExitCode.RUNTIME,
        )


def is_in_image(job: Job, container: Container | None) -> bool:
    """Returns whether a job runs in an image; otherwise it runs in the node's own Python."""
    return container is not None and job.runtime.image is not None


def srun_options(image: str, directories: list[str], root: str) -> tuple[str, ...]:
    """Options of pyxis (NVIDIA/pyxis, README, "Usage")."""
    return (
        f"--container-image={_of_enroot(image)}",
        f"--container-mounts={','.join(f'{path}:{path}' for path in directories)}",
        f"--container-workdir={root}",
        "--no-container-mount-home",
        "--container-env=PYTHONPATH",
    )


def apptainer_words(image: str, directories: list[str], root: str, *, has_gpus: bool) -> tuple[str, ...]:
    """Command prefix of the program (Apptainer 1, user guide, "apptainer exec")."""
    place = image if _is_file(image) or "://" in image else f"docker://{image}"
    nvidia = ("--nv",) if has_gpus else ()
    return ("apptainer", "exec", *nvidia, "--no-home", "--bind", ",".join(directories), "--pwd", root, place)


def _of_enroot(image: str) -> str:
    """An image's name in enroot's syntax: `#` after the registry."""
    registry, slash, rest = image.partition("/")
    is_registry = bool(slash) and ("." in registry or ":" in registry)
    return image if _is_file(image) or "#" in image or not is_registry else f"{registry}#{rest}"


def _is_file(image: str) -> bool:
    return image.startswith(("/", ".")) or image.endswith((".sif", ".sqsh"))
