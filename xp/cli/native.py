"""`python -m xp plan --native` and `--native-diff FILE`: a plan's native keys, and a script's own beside them."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from importlib import import_module
from typing import Final

from xp.cli.explain import fields_of
from xp.cli.table import print_json, show_table
from xp.composition.plan_keys import PlanKeys
from xp.planning.plan import Plan

COLUMNS: Final = dict.fromkeys(("key", "script", "plan", "result", "in_xp"), 0)


def show_native(args: Namespace, plan: Plan) -> None:
    """Prints the native keys of the training, or of the fine-tuning if that is all; or the table of a script's keys."""
    keys = PlanKeys(plan)
    if args.native_diff is not None:
        fields = {path: field.value for path, field in fields_of(plan.spec).items()}
        annex = import_module("xp.contrib.native_diff.difference")
        lines, unread = annex.Difference(keys, fields).of_file(args.native_diff)
        show_table(COLUMNS, [asdict(line) for line in lines], as_json=args.json)
        for sentence in unread:
            print(f"not read: {sentence}", file=sys.stderr)
        if not args.json:
            print(annex.counts(lines))
    elif args.json:
        print_json(keys.rendered)
    else:
        print("\n".join(keys.lines()))
