"""`python -m xp tasks list|show|verify|prune`: commands on the task store."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from xp.cli.table import print_json, show_table
from xp.errors import ExitCode, XpError
from xp.lib.terminal import is_read, shown
from xp.lib.text import counted
from xp.tasks.config import Purpose
from xp.tasks.inspect import OTHER, StoreEntry, find_set, list_sets, prune, show_tasks, verify_set
from xp.tasks.row import TaskRow

STORE = "tasks"
COLUMNS: Final = {
    "set": 0,
    "state": 1,
    "environments": 4,
    "train": 2,
    "held out": 3,
    "failed": 5,
    "MB": 7,
    "changed": 6,
}


def tasks_command(args: Namespace) -> int:
    """Runs one command on the store below the outputs root; raises XpError."""
    store = args.outputs / STORE
    if args.action == "profile":
        from xp.cli.evaluation import profile_command

        return profile_command(args)
    if args.action == "list":
        if sys.stdout.isatty() and not args.json:
            print(f"task sets in {store}")
        show_table(COLUMNS, [_row(item) for item in list_sets(store)], as_json=args.json)
    elif args.action == "show":
        purpose = args.purpose and Purpose(args.purpose)
        for row in show_tasks(find_set(store, args.key), args.num_tasks, purpose, args.task):
            _print_task(row)
            if not is_read():
                break
    elif args.action == "verify":
        keys = args.keys or [
            item.path.name for item in list_sets(store) if item.state in ("whole", "damaged")
        ]
        return _verify(store, keys, as_json=args.json)
    else:
        others = [item.path.name for item in list_sets(store) if item.state == OTHER]
        rows = [_row(item) for item in prune(store, args.keep, is_dry=not args.yes)]
        if args.json:
            print_json([row | {"removed": args.yes} for row in rows])
            return ExitCode.OK
        print("removed" if args.yes else "would be removed (add --yes to do it)")
        show_table(COLUMNS, rows)
        if others:
            print(shown(f"left alone, since xp did not make them: {', '.join(others)}"))
    return ExitCode.OK


def _verify(store: Path, keys: list[str], *, as_json: bool) -> int:
    """Checks task sets, with a line or a JSON object for each; the exit code is TASKS if one is faulty."""
    results: list[dict[str, Any]] = []
    for key in keys:
        try:
            verified = verify_set(find_set(store, key))
            num_tasks = sum(verified.num_tasks(purpose) for purpose in Purpose)
            results.append(
                {"set": verified.key, "is_whole": True, "tasks": num_tasks, "fault": None}
            )
            line = f"{verified.key}: whole, {counted(num_tasks, 'task')}"
        except XpError as error:
            results.append({"set": key, "is_whole": False, "tasks": None, "fault": str(error)})
            line = f"{key}: {error}"
        if not as_json:
            print(line, flush=True)
    if as_json:
        print_json(results)
    if all(result["is_whole"] for result in results):
        return ExitCode.OK
    return ExitCode.TASKS


def _row(item: StoreEntry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "set": item.path.name,
        "state": item.state,
        "MB": item.num_bytes / 1e6,
        "changed": time.strftime("%Y-%m-%d %H:%M", time.localtime(item.modified)),
    }
    if item.manifest is not None:
        counts = [(p, c) for purposes in item.manifest.counts.values() for p, c in purposes.items()]
        train, held_out = (sum(c.tasks for p, c in counts if p == purpose) for purpose in Purpose)
        row |= {
            "environments": ", ".join(item.manifest.counts),
            "train": train,
            "held out": held_out,
            "failed": len(item.manifest.failures),
        }
    return dict.fromkeys(COLUMNS) | row


def _print_task(row: TaskRow) -> None:
    print(f"=== {row.task_id} ({row.purpose}) {row.task_hash[:12]}")
    for message in row.messages:
        print(f"--- {message['role']}\n{shown(message['content'])}")
    print("--- tools")
    for tool in json.loads(row.tools):
        print(shown(json.dumps(tool["function"], ensure_ascii=False)))
