"""Publishes a trained model for later stages and users, atomically."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.lib.atomic import sync_directory, write_json
from xp.lib.models.template import install_template
from xp.lib.reading import json_of
from xp.lib.verified import DIGESTS, damaged, write_digests


def publish(
    save: Callable[[Path], object],
    target: Path,
    end_ids: Sequence[int],
    template: str | None = None,
) -> None:
    """Saves a model beside the target, then renames it.

    A model of an earlier attempt is kept as `<name>.attempt-<n>`, with the first free number.

    Args:
        save: function that writes a Hugging Face directory.
        target: path of the model.
        end_ids: tokens that ended a turn in the training.
        template: the chat template of the training. None means that it is the one that `save` writes.
    """
    staged = target.with_name(f".{target.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    save(staged)
    seal(staged, end_ids, template)
    if target.exists():
        numbers = (target.with_name(f"{target.name}.attempt-{number}") for number in count(1))
        target.rename(next(aside for aside in numbers if not os.path.lexists(aside)))
    staged.rename(target)


def seal(directory: Path, end_ids: Sequence[int], template: str | None = None) -> None:
    """Completes a directory of a trained model: the ends of its turns, which `generate()` reads, its chat template, and
    the digests.

    Args:
        directory: Hugging Face directory; one with adapters alone has no ends.
        end_ids: tokens that ended a turn in the training.
        template: as in `publish`.
    """
    if template is not None:
        install_template(directory, template)
    if (directory / "config.json").is_file():
        file = directory / "generation_config.json"
        config = json_of(file, ExitCode.RUN_DIR) if file.is_file() else {}
        # With this mark, transformers may take the ends of config.json instead.
        config.pop("_from_model_config", None)
        write_json(file, {**config, "eos_token_id": list(end_ids)})
    write_digests(directory)


@contextmanager
def made_beside(target: Path) -> Iterator[Path]:
    """Context manager: yields an empty directory beside the target, for `take_name`; removes it if it has no other name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    unfinished.chmod(0o755)
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def take_name(directory: Path, target: Path, is_whole: Callable[[], bool]) -> None:
    """Renames a directory; a whole one that another process made meanwhile stays, and another one is replaced.

    Args:
        directory: directory beside the target, as of `made_beside`.
        target: the new name.
        is_whole: returns whether the target has all its files.
    """
    if is_whole():
        return
    shutil.rmtree(target, ignore_errors=True)
    try:
        directory.rename(target)
    except OSError:
        if not is_whole():
            raise
    sync_directory(target.parent)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Makes a hard link, or a copy on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def check_there(directory: str) -> None:
    """Checks a model before it is loaded.

    Raises:
        XpError: (RUN_DIR) a run's directory has neither a model nor adapters, or the files of a published model are
            not those that were published.
    """
    files = ("config.json", "adapter_config.json")
    if directory.startswith("runs/") and not any(Path(directory, name).is_file() for name in files):
        raise XpError(
            f"there is no model at {directory}; did the run get that far?", ExitCode.RUN_DIR
        )
    manifest = Path(directory, DIGESTS)
    if manifest.is_file():
        fault = damaged(manifest)
        if fault is not None:
            raise XpError(
                f"the model at {directory} is not the one that was published: {fault}\n"
                "a run publishes its model again when it is resumed; if a checkpoint is damaged, choose another one;"
                f" if you changed the model yourself, remove {manifest}",
                ExitCode.RUN_DIR,
            )


def step_directories(directory: Path, form: str) -> dict[int, Path]:
    """Directories whose names have exactly the form, such as `checkpoint-{}` or `iter_{:07d}`, by their number."""
    prefix = form.partition("{")[0]
    directories: dict[int, Path] = {}
    for path in directory.glob(f"{prefix}*"):
        digits = path.name.removeprefix(prefix)
        if (
            digits.isascii()
            and digits.isdigit()
            and path.name == form.format(int(digits))
            and path.is_dir()
        ):
            directories[int(digits)] = path
    return directories
