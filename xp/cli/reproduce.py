"""Commands that do a run again or hand it on: bundle, replay, publication, and a run of a recorded spec."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from xp.cli.table import wrapped
from xp.errors import ExitCode
from xp.lib.atomic import write_json
from xp.lib.terminal import shown
from xp.planning.plan import build_plan, new_run_id
from xp.results.replay.recorded import RecordedRun

if TYPE_CHECKING:
    from xp.results.replay.replay import Check


def write_bundle(run: Path, target: Path | None, *, has_tasks: bool, has_episodes: bool) -> None:
    """Makes the bundle of a run and prints its place, and what it is without."""
    from xp.results.replay.bundle import make_bundle

    target = target or Path(f"{run.name}.zip")
    for line in make_bundle(run, target, has_tasks=has_tasks, has_episodes=has_episodes):
        print(shown(f"left out: {line}"))
    print(
        shown(
            f"{target}  {target.stat().st_size / 1e6:.1f} MB; run it elsewhere: python -m xp run {target}"
        )
    )


def run_recorded(recorded: RecordedRun, args: Namespace) -> int:
    """Runs a spec.yaml or a bundle as a new run; of a bundle, prints what differs from its lock."""
    from xp.cli.run_plans import run_plans, tell_code

    if recorded.directory is not None:
        tell_code(recorded.name, recorded.spec)
    plan = build_plan(recorded.spec, new_run_id(recorded.spec), command=("run", *args.overrides))
    recorded.bring_tasks()
    code = run_plans([plan], has_panel=not args.lines)
    if recorded.directory is not None and not recorded.spec.launcher.detach:
        show_differences(recorded, Path(recorded.spec.outputs) / "runs" / plan.run_id)
    return code


def show_differences(recorded: RecordedRun, run: Path) -> None:
    """Prints whether a run has the same lock as the recorded one, and what differs."""
    lines = recorded.differences(run)
    print(shown(f"lock of {recorded.name}: {'the same' if not lines else 'these differ:'}"))
    for line in lines:
        print(shown(f"  {line}"))


def replay_command(args: Namespace) -> int:
    """Does a recorded run again, and prints and writes what is the same and what differs."""
    from xp.execution.named import run_directory
    from xp.results.replay.replay import Outcome

    if args.run.endswith(".zip"):
        source = Path(args.run)
        outputs = args.outputs
        name = source.stem
    else:
        source = run_directory(args.outputs, args.run)
        outputs = source.parent.parent
        name = source.name
    recorded = _awaited(RecordedRun.open(source, (f"outputs='{outputs}'",)))
    done: list[Check] = []
    for check in _checks(recorded, outputs, trains=not args.no_training):
        done.append(check)
        print(shown(f"{check.what:11}  {check.verdict:11}  {check.summary}"))
        for line in check.differences:
            print(wrapped(shown(f"     {line}")))
    file = outputs / "replays" / name / "replay.json"
    write_json(file, [asdict(check) for check in done])
    print(shown(f"result: {file}"))
    if any(check.verdict is Outcome.DIFFERS for check in done):
        return ExitCode.DIFFERS
    return ExitCode.OK


def _awaited(recorded: RecordedRun) -> RecordedRun:
    """The recorded run, to be done again by a command that waits for its end: only then can it be compared."""
    launcher = recorded.spec.launcher
    changes = {"detach": False, "array": launcher.array and False, "array_at_once": None}
    spec = recorded.spec.model_copy(update={"launcher": launcher.model_copy(update=changes)})
    return replace(recorded, spec=spec)


def _checks(recorded: RecordedRun, outputs: Path, *, trains: bool) -> Iterator[Check]:
    from xp.cli.run_plans import run_plans, tell_code
    from xp.results.replay.replay import check_first_batch, check_tasks, check_weights

    if recorded.source.suffix == ".zip":
        tell_code(recorded.name, recorded.spec)
    with TemporaryDirectory(prefix="xp-replay-") as scratch:
        yield check_tasks(recorded, Path(scratch))
    if not trains:
        return
    recorded.bring_tasks()
    plan = build_plan(recorded.spec, new_run_id(recorded.spec))
    run_plans([plan])
    run = outputs / "runs" / plan.run_id
    show_differences(recorded, run)
    yield check_first_batch(recorded, run)
    yield check_weights(recorded, run)


def publish_run(run: Path, target: str, *, has_episodes: bool, is_dry: bool) -> None:
    """Publishes a run's model and episodes, or prints what would be published."""
    from xp.results.replay.publish import CARD, HUB, episode_files, listing, model_files, publish

    parts = {"model": model_files(run)}
    if has_episodes:
        parts["episodes"] = episode_files(run)
    if is_dry:
        for line in (*listing(parts), "", *str(parts["model"][CARD]).splitlines()):
            print(shown(line))
        return
    for path in publish(parts, target):
        print(shown(path))
    if target.startswith(HUB):
        print("a new repository is private; its page on the hub can make it public")
