"""Makes the bundle of a run: one zip file with which somebody else does the run again (xp.results.replay.recorded)."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from xp import __version__
from xp.composition.points import to_yaml, validated
from xp.envs.base import Picture
from xp.envs.picture_store import DIRECTORY, PictureStore
from xp.envs.pictures import is_picture
from xp.episode.evaluation import RECORD
from xp.errors import ExitCode, XpError
from xp.execution.held_out import evaluation_files
from xp.execution.launchers.files import PACKAGE, data_paths, inside
from xp.execution.lock import FILE as LOCK
from xp.execution.lock import Lock, read_lock
from xp.execution.record import read_record
from xp.execution.run_directory import SPEC, resource_errors
from xp.lib.atomic import replacing
from xp.lib.data_files import HUB, data_of, shipped_name
from xp.lib.reading import is_inner_path, json_of, recorded_spec
from xp.lib.secrets.redaction import MASK, Redactor, known_values
from xp.lib.secrets.shapes import holds_token
from xp.lib.verified import DIGESTS
from xp.planning.episode import needs_catalog_key
from xp.results.evaluation.results import of_run
from xp.results.evaluation.statistics import summarize
from xp.results.replay.recorded import ABOUT
from xp.spec import RunSpec
from xp.spec.sft import SOLVE
from xp.tasks.picture_files import FILE as SHOWN
from xp.tasks.picture_files import Digests

MAX_TASKS_BYTES: Final = 200_000_000
MAX_EPISODES_BYTES: Final = 500_000_000
BY_CHOICE: Final = "by --no-tasks"
GONE: Final = "it is not in the store any more"
_DIGEST: Final = re.compile(rb'"sha256": ?"[0-9a-f]{64}"')
"""What a line of a trajectory has that has a picture."""
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Time of every entry, so that the same run gives the same bytes."""


def make_bundle(run: Path, target: Path, *, has_tasks: bool, has_episodes: bool) -> list[str]:
    """Writes the bundle of a run.

    Args:
        run: directory of the run.
        target: the file, which must not exist.
        has_tasks: whether the task set may be handed on, if its size and its environment's account permit it.
        has_episodes: whether the recorded episodes are in it.

    Returns:
        One line for each part that is left out, with the reason.

    Raises:
        XpError: (CONFIG) the name does not end with .zip; (RUN_DIR) the run has no lock, or the file exists; (SECRET) a
            file has the value of a secret.
    """
    if target.suffix != ".zip":
        raise XpError(
            f"--to {target}: the name of a bundle ends with .zip; write --to {target}.zip"
        )
    if target.exists():
        raise XpError(
            f"{target} exists, and nothing is overwritten; give another name: --to FILE",
            ExitCode.RUN_DIR,
        )
    lock = read_lock(run)
    spec = validated(recorded_spec(run / SPEC), run.name)
    attempt = run / f"attempt_{lock.attempt}"
    left_out: list[str] = []
    files: dict[str, Path | str] = {SPEC: to_yaml(spec), LOCK: lock.to_json()}
    files |= _records(run, attempt, left_out, has_episodes=has_episodes)
    files |= {f"{attempt.name}/code/{name}": file for name, file in _code(attempt / "code")}
    task_set = _task_set(run, attempt)
    files |= _tasks(task_set, spec, left_out, has_tasks=has_tasks)
    named = _pictures_of_rows(task_set[0].parent, spec, left_out, has_tasks=has_tasks)
    beside = dict(_beside_rows(spec, attempt.name, named, left_out))
    files |= _pictures(run, files, beside.values(), left_out)
    left_out += _on_this_machine(spec)
    left_out += _without_copy(lock, attempt / "code")
    record = read_record(run)
    data = {str(path): attempt / "code" / shipped_name(path) for path in data_paths(spec)}
    about = {
        "format": 1,
        "run": run.name,
        "xp": __version__,
        "commit": record.attempts[lock.attempt - 1].provenance.commit,
        "secrets": list(record.secrets),
        "data": {path: str(copy.relative_to(run)) for path, copy in data.items() if copy.exists()},
        "pictures": beside,
        "figures": figures_of(run),
        "left_out": left_out,
    }
    files[ABOUT] = json.dumps(about, indent=2) + "\n"
    refuse_secrets(files, record.secrets)
    with (
        resource_errors(target),
        replacing(target) as temporary,
        zipfile.ZipFile(temporary, "w") as archive,
    ):
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _TIME)
            content = files[name]
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content if isinstance(content, str) else content.read_bytes())
    return left_out


def _without_copy(lock: Lock, code: Path) -> list[str]:
    """Modules that a run has loaded and has no copy of."""
    copied = {f"code.{file.name.removesuffix('.py')}" for file in code.iterdir()}
    return [
        f"{name}: no statement imports it, so that the run has no copy"
        for name in lock.facts
        if name.startswith("code.") and name not in copied
    ]


def _on_this_machine(spec: RunSpec) -> Iterator[str]:
    """Models, and data of a fine-tuning, that a bundle does not have."""
    distill = spec.algorithm.distill
    models = {"model": spec.model.path, "start": spec.training.initial_checkpoint}
    if distill is not None and distill.url is None:
        models["teacher"] = distill.teacher
    for what, directory in models.items():
        if directory is not None and Path(directory).is_absolute():
            yield f"{what}: {directory} is a directory of this machine; send it too"
    if spec.sft.data is not None and not spec.sft.data.startswith((SOLVE, HUB)):
        yield f"sft.data: {spec.sft.data} is on this machine; send it too"


def _records(
    run: Path, attempt: Path, left_out: list[str], *, has_episodes: bool
) -> Iterator[tuple[str, Path]]:
    """Plan, metrics, evaluations, facts and episodes, at their places in the run."""
    episodes = [file for file in run.glob("attempt_*/*/trajectories/**/*") if file.is_file()]
    size = sum(file.stat().st_size for file in episodes)
    if not has_episodes or size > MAX_EPISODES_BYTES:
        left_out.append(
            f"episodes: {f'{size / 1e6:.0f} MB' if has_episodes else 'by --no-episodes'}"
        )
        episodes = []
    small = (
        "plan.json",
        f"evaluate/*/{RECORD}",
        "train/facts.json",
        "train/dialect.json",
        "train/length.json",
    )
    files = [
        run / "metrics.jsonl",
        run / "model" / DIGESTS,
        *(file for pattern in small for file in run.glob(f"attempt_*/{pattern}")),
    ]
    assert attempt / "plan.json" in files
    for file in (*files, *episodes):
        if file.is_file() and not file.is_symlink():
            yield str(file.relative_to(run)), file


def _code(code: Path) -> Iterator[tuple[str, Path]]:
    """The user's modules and the environments' files, as the run copied them; xp itself is named by its digest."""
    for top in sorted(code.iterdir()):
        if top.name != PACKAGE.name:
            for file in sorted(top.rglob("*")) if top.is_dir() else (top,):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield str(file.relative_to(code)), file


def _task_set(run: Path, attempt: Path) -> list[Path]:
    """Files of the run's task set, in one directory, which may be gone."""
    plan = json_of(attempt / "plan.json", ExitCode.RUN_DIR, below=run)
    return [inside(run.parent.parent, name) for name in plan["stages"][0]["job"]["outputs"]]


def _tasks(
    outputs: Sequence[Path], spec: RunSpec, left_out: list[str], *, has_tasks: bool
) -> Iterator[tuple[str, Path]]:
    files = [path for path in outputs if path.is_file()]
    size = sum(file.stat().st_size for file in files)
    reason = None
    if not has_tasks:
        reason = BY_CHOICE
    elif any(needs_catalog_key(member) for member in spec.env.members.values()):
        reason = "the environment's tasks are behind an account"
    elif not files:
        reason = GONE
    elif size > MAX_TASKS_BYTES:
        reason = f"{size / 1e6:.0f} MB"
    if reason is None:
        shown = files[0].with_name(SHOWN)
        if shown.is_file():
            files.append(shown)
        yield from ((f"tasks/{file.parent.name}/{file.name}", file) for file in files)
    else:
        left_out.append(f"task set: {reason}; its request is in {SPEC}")


def _pictures_of_rows(
    directory: Path, spec: RunSpec, left_out: list[str], *, has_tasks: bool
) -> Digests:
    """The pictures that the run's rows name, also of a task set that is too large for a bundle or behind an account:
    the rows themselves are files of the run."""
    rows = (member.rows for member in spec.env.members.values())
    if spec.model.images is None or not any(map(data_of, rows)):
        return {}
    shown = directory / SHOWN
    if directory.is_dir() and not shown.is_file():
        return {}
    if has_tasks and shown.is_file():
        digests: Digests = json_of(shown, ExitCode.TASKS)
        return digests
    reason = f"the task set has their names, and {GONE}" if has_tasks else BY_CHOICE
    left_out.append(f"pictures that the rows name: {reason}; send them too")
    return {}


def _beside_rows(
    spec: RunSpec, attempt: str, digests: Digests, left_out: list[str]
) -> Iterator[tuple[str, str]]:
    """Place in the bundle of each picture that rows name, beside their copy, and its sha256.

    Args:
        spec: the run's spec.
        attempt: name of the directory with the run's code.
        digests: the pictures.
        left_out: lines for what is left out.
    """
    for member, names in digests.items():
        places = data_of(spec.env.members[member].rows)
        for name, digest in names.items():
            if places and is_inner_path(name):
                copy = PurePosixPath(attempt, "code", shipped_name(places[0]))
                folder = copy if places[0].is_dir() else copy.parent
                yield str(folder / name), digest
            else:
                left_out.append(f"picture {name}: not below the directory of its file of rows")


def _pictures(
    run: Path, files: Mapping[str, Path | str], beside: Iterable[str], left_out: list[str]
) -> Iterator[tuple[str, Path]]:
    """The pictures of rows beside which they were, and of the recorded episodes."""
    store = PictureStore(run.parent.parent / DIRECTORY)
    digests = set(beside)
    for name, file in files.items():
        if "/trajectories/" in name and isinstance(file, Path) and file.suffix == ".jsonl":
            digests |= _recorded_pictures(file)
    stored = [store.file(digest) for digest in sorted(digests) if store.file(digest).is_file()]
    num_missing = len(digests) - len(stored)
    if num_missing:
        left_out.append(
            f"pictures: {num_missing} of {len(digests)} are not in {store.directory} any more"
        )
    size = sum(file.stat().st_size for file in stored)
    if size > MAX_EPISODES_BYTES:
        left_out.append(f"pictures: {size / 1e6:.0f} MB; send {store.directory} too")
        return
    for file in stored:
        yield f"{DIRECTORY}/{file.parent.name}/{file.name}", file


def _recorded_pictures(file: Path) -> set[str]:
    """sha256 of the pictures in a file of trajectories."""
    digests: set[str] = set()
    for line in file.read_bytes().splitlines():
        if _DIGEST.search(line):
            with suppress(ValueError):  # the last line of a killed run
                digests |= {picture["sha256"] for picture in _pictures_in(json.loads(line))}
    return digests


def _pictures_in(node: Any) -> Iterator[Picture]:
    """The pictures anywhere in a value of JSON; an argument of a tool may have a sha256 too."""
    if is_picture(node):
        yield node
    elif isinstance(node, Mapping):
        for child in node.values():
            yield from _pictures_in(child)
    elif isinstance(node, list):
        for child in node:
            yield from _pictures_in(child)


def figures_of(run: Path) -> dict[str, Any]:
    """Held-out reward and pass rate of each model, with their intervals."""
    figures = {}
    for name in evaluation_files(run):
        record = of_run(run, run.name, name).record
        summary = summarize(record.rewards, record.summary.pass_threshold)
        figures[name] = summary.model_dump(include={"reward", "passes"})
    return figures


def refuse_secrets(files: Mapping[str, Path | str], names: tuple[str, ...]) -> None:
    """Raises XpError(SECRET) for a file with the value of a secret of the run or of this process, and for code with a
    token."""
    masked = Redactor(known_values(names))
    plain = Redactor()
    for name, text in files.items():
        if isinstance(text, Path):
            text = text.read_text(encoding="utf-8", errors="replace")
        known = masked.redact(text).count(MASK) > plain.redact(text).count(MASK)
        if known or ("/code/" in name and holds_token(text)):
            raise XpError(
                f"{name} has the value of a secret, and a bundle has only names of secrets; read it from a variable"
                " (env.secrets), and make a new run",
                ExitCode.SECRET,
            )
