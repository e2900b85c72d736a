"""The prepare stage's program, `python -m xp.tasks.prepare <config.json>`: makes a complete task set, or fails."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from xp.envs import picture_store, server_events
from xp.envs.base import AnswerChecker, Provider
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import digests_of
from xp.errors import ExitCode, XpError
from xp.lib.progress import ProgressBar
from xp.lib.reading import config_of
from xp.lib.signals import StopSignal, stopping
from xp.tasks.config import PrepareConfig, Purpose, Reader
from xp.tasks.held_out import HeldOutRecord, evaluation_only
from xp.tasks.picture_files import changed_pictures, digests_of_rows, few, members_with_folders
from xp.tasks.report import print_held_out
from xp.tasks.request import request_key, source_digest
from xp.tasks.selection import SelectedTasks, ordered_tasks, select_tasks
from xp.tasks.store import BrokenSet, TaskSet, prove, writing_below
from xp.tasks.training_length import steps_of


def prepare(
    config: PrepareConfig,
    environ: Mapping[str, str],
    root: Path = Path("."),
    reader: Reader | None = None,
) -> TaskSet:
    """Returns the set of this request: from the store if it is complete there, else newly built.

    Args:
        config: the request.
        environ: environment with the providers' secrets.
        root: outputs root; `config.store` is relative to it.
        reader: the run that reads the tasks. None means that lengths in the table are in characters.

    Raises:
        XpError: see docs/exit-codes.md; no incomplete set is left.
    """
    path = root / config.store / request_key(config)
    task_set = None
    with suppress(BrokenSet, OSError):
        task_set = prove(path)
    if task_set is not None and _lacking(config, task_set, environ) is None:
        print(f"prepare: {_size(task_set)} recognised in {path}", flush=True)
        print_held_out(task_set.manifest)
        return _trainable(config, task_set, reader)
    with writing_below(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        from xp.tasks.entries import builder_lock

        waits = f"prepare: another process builds {path.name}; waiting for it"
        with builder_lock(path.with_name(f".{path.name}.lock"), lambda: _say(waits)):
            return _trainable(config, _build(config, environ, path, reader), reader)


def _build(
    config: PrepareConfig, environ: Mapping[str, str], path: Path, reader: Reader | None
) -> TaskSet:
    """Builds the set, under the lock, unless another process has built it meanwhile; sets a damaged set aside."""
    from xp.tasks.build import judge, merge, publish, set_aside
    from xp.tasks.entries import WorkDirectory
    from xp.tasks.fetch import Fetcher
    from xp.tasks.prompt_lengths import prompt_lengths
    from xp.tasks.report import print_summary

    try:
        task_set = prove(path)
        lacking = _lacking(config, task_set, environ)
        if lacking is None:
            print(f"prepare: {_size(task_set)} in {path}, built by another process", flush=True)
            return task_set
        _say(f"prepare: {path.name} {lacking}; building it again")
    except FileNotFoundError:
        pass
    except BrokenSet as error:
        set_aside(path, str(error))
    work = WorkDirectory(path.with_name(f"{path.name}.work"))
    work.path.mkdir(parents=True, exist_ok=True)  # before any request
    start = time.monotonic()
    with work.dropped_if_unused(), _providers(config, environ) as providers:
        for name, provider in providers.items():
            if isinstance(provider, AnswerChecker):
                line = provider.check_answers()
                if line is not None:
                    print(f"prepare: {name}: {line}", flush=True)
        versions, selected = _plan(config, providers)
        tasks = ordered_tasks(config, selected)
        work.begin({"key": path.name, "environments": versions}, anew=members_with_folders(config))
        began_s = time.time()
        with ProgressBar("prepare", len(tasks), "tasks") as progress:
            failures = Fetcher(config, providers, work, progress).run(tasks)
        judge(config, tasks, failures, work)
        shown = digests_of_rows(config, tasks, work, providers, began_s)
    records = {name: chosen.record for name, chosen in selected.items()}
    publish(merge(config, tasks, work, failures, versions, records, shown), path, work)
    built = prove(path)
    title = f"{_size(built)} in {path}, {time.monotonic() - start:.1f} s"
    lengths = None
    if reader is not None:
        lengths = prompt_lengths(built, reader)
    print_summary(title, built.manifest.counts, lengths)
    print_held_out(built.manifest)
    for note in built.manifest.notes:
        print(f"note: {note}")
    return built


def _lacking(config: PrepareConfig, task_set: TaskSet, environ: Mapping[str, str]) -> str | None:
    """Why a valid set is not used, as the end of a sentence; None if it is."""
    if task_set.manifest.missing_fraction() > config.preparation.allow_missing_fraction:
        return "lacks more tasks than is permitted"
    if all(member.env.images is None for member in config.members.values()):
        return None
    changed = changed_pictures(task_set.path, config)
    if changed:
        return f"has other pictures than the files of its rows now ({few(changed)})"
    store = PictureStore.of_environ(environ)
    digests = (digest for row in task_set.rows() for digest in digests_of(row.messages))
    if all(store.file(digest).is_file() for digest in digests):
        return None
    return "lacks pictures"  # as another machine's store may


@contextmanager
def _providers(config: PrepareConfig, environ: Mapping[str, str]) -> Iterator[dict[str, Provider]]:
    from xp.envs.config import load_provider
    from xp.tasks.questions import ask

    with ExitStack() as stack:
        providers = {}
        for name, member in sorted(config.members.items()):
            if member.source is not None and member.source != source_digest(member.env):
                raise XpError(
                    f"env {name}: {member.env.serve or member.env.provider} changed since this was planned\n"
                    "start the run again, so that its tasks are named after the new code",
                    ExitCode.TASKS,
                )
            provider = ask(member, partial(load_provider, member.env, environ))
            providers[name] = stack.enter_context(closing(provider))
        yield providers


def _plan(
    config: PrepareConfig, providers: Mapping[str, Provider]
) -> tuple[dict[str, str], dict[str, SelectedTasks]]:
    from xp.tasks.questions import ProviderSplits, ask

    versions = {}
    selected = {}
    for name, member in sorted(config.members.items()):
        versions[name] = ask(member, providers[name].version)
        selected[name] = select_tasks(member, ProviderSplits(member, providers[name]))
    if config.trains and not any(Purpose.TRAIN in chosen.tasks for chosen in selected.values()):
        raise _nothing_to_train_on({name: selection.record for name, selection in selected.items()})
    return versions, selected


def _trainable(config: PrepareConfig, task_set: TaskSet, reader: Reader | None) -> TaskSet:
    """Returns the set; raises XpError if a training follows and there are no training tasks, or too few for a step."""
    num_tasks = task_set.num_tasks(Purpose.TRAIN)
    if config.trains and not num_tasks:
        raise _nothing_to_train_on(task_set.manifest.held_out)
    if reader is not None and reader.trains:
        steps_of(reader.spec.training, num_tasks)
    return task_set


def _nothing_to_train_on(records: Mapping[str, HeldOutRecord]) -> XpError:
    lines = (f"env {name}: {evaluation_only(record)}" for name, record in records.items())
    return XpError("\n".join(lines), ExitCode.TASKS)


def _size(task_set: TaskSet) -> str:
    train = task_set.num_tasks(Purpose.TRAIN)
    held_out = task_set.num_tasks(Purpose.HELD_OUT)
    return f"task set {task_set.key} ({train} training, {held_out} held-out tasks)"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    if len(argv) not in (1, 2):
        _say("usage: python -m xp.tasks.prepare <config.json> [<reader.json>]")
        return ExitCode.CONFIG
    try:
        with stopping():
            reader = config_of(Path(argv[1]), Reader.from_json) if len(argv) == 2 else None
            variables = {
                server_events.VARIABLE: str(Path(argv[0]).absolute().with_name(server_events.FILE)),
                picture_store.VARIABLE: str(PictureStore.of_stage().directory),
            }
            prepare(
                config_of(Path(argv[0]), PrepareConfig.from_json),
                {**os.environ, **variables},
                reader=reader,
            )
    except XpError as error:
        if os.environ.get("XP_DEBUG") == "1":
            traceback.print_exc()
        _say(f"error: {error}")
        return error.code
    except StopSignal as stopped:
        _say("prepare: stopped; fetched tasks are kept, and the same command continues from them")
        return stopped.code
    except Exception:
        traceback.print_exc()
        return ExitCode.INTERNAL
    return ExitCode.OK


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread that hangs must not keep the process alive
