"""`python -m xp tasks list|show|verify|prune`: the store for a person at a terminal."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NoReturn

from xp.errors import ExitCode, XpError
from xp.security.terminal import shown
from xp.tasks.config import Purpose
from xp.tasks.inspect import Listed, find_set, list_sets, prune, show_tasks, verify_set
from xp.tasks.row import TaskRow

STORE = "tasks"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise XpError(f"{message}\n{self.format_usage().strip()}", ExitCode.CONFIG)


def main(argv: list[str], outputs: Path) -> int:
    """Run one command on the store below the outputs root; raises XpError."""
    asked = _parser().parse_args(argv)
    store = outputs / STORE
    if asked.command == "list":
        _print_list(list_sets(store), f"task sets in {store}")
    elif asked.command == "show":
        purpose = None if asked.purpose is None else Purpose(asked.purpose)
        for row in show_tasks(find_set(store, asked.key), asked.num_tasks, purpose, asked.task):
            _print_task(row)
    elif asked.command == "verify":
        keys = asked.keys or [item.path.name for item in list_sets(store) if item.state in ("whole", "damaged")]
        return _verify(store, keys)
    else:
        removed = prune(store, asked.keep, is_dry=not asked.yes)
        _print_list(removed, "removed" if asked.yes else "would be removed (add --yes to do it)")
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m xp tasks", description="Look at the store of prepared task sets.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    commands.add_parser("list", help="every set in the store")
    show = commands.add_parser("show", help="tasks as the model will see them")
    show.add_argument("key", help="key of the set, or its beginning")
    show.add_argument("-n", "--num-tasks", type=int, default=1, help="how many (1)")
    show.add_argument("--purpose", choices=[purpose.value for purpose in Purpose])
    show.add_argument("--task", help="exactly this one: member/split/index")
    verify = commands.add_parser("verify", help="check every hash; exit code 6 if one is wrong")
    verify.add_argument("keys", nargs="*", help="keys, or their beginnings; none: all sets")
    pruning = commands.add_parser("prune", help="remove sets, leftovers and what was set aside")
    pruning.add_argument("--keep", nargs="*", default=[], metavar="KEY", help="sets that stay")
    pruning.add_argument("--yes", action="store_true", help="do it; without this, only say what would go")
    return parser


def _verify(store: Path, keys: list[str]) -> int:
    status = ExitCode.OK
    for key in keys:
        try:
            found = verify_set(find_set(store, key))
            print(f"{found.key}: whole, {sum(found.num_tasks(purpose) for purpose in Purpose)} tasks")
        except XpError as error:
            print(f"{key}: {error}")
            status = ExitCode.TASKS
    return status


def _print_list(listed: list[Listed], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    print(title)
    table = Table()
    for column in ("set", "state", "environments", "train", "held", "failed", "MB", "changed"):
        table.add_column(column, no_wrap=column != "environments")
    for item in listed:
        numbers: tuple[str, ...] = ("-", "-", "-", "-")
        if item.manifest is not None:
            counts = [(p, c) for purposes in item.manifest.counts.values() for p, c in purposes.items()]
            tasks = [str(sum(c.tasks for p, c in counts if p == purpose)) for purpose in Purpose]
            numbers = (", ".join(item.manifest.counts), *tasks, str(len(item.manifest.failures)))
        changed = time.strftime("%m-%d %H:%M", time.localtime(item.modified))
        table.add_row(item.path.name, item.state, *numbers, f"{item.num_bytes / 1e6:.1f}", changed)
    Console(markup=False, highlight=False).print(table)


def _print_task(row: TaskRow) -> None:
    print(f"=== {row.task_id} ({row.purpose}) {row.task_hash[:12]}")
    for message in row.messages:
        print(f"--- {message['role']}\n{shown(message['content'])}")
    print("--- tools")
    for tool in json.loads(row.tools):
        print(shown(json.dumps(tool["function"], ensure_ascii=False)))
