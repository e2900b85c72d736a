"""Commands that only print: options, parity, explain, doctor, the configuration, completion."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

from xp.cli.arguments import groups
from xp.cli.table import wrapped
from xp.composition import GROUPS, compose, options, to_yaml
from xp.errors import ExitCode, XpError, nearest
from xp.lib.terminal import shown


def options_command(args: Namespace) -> int:
    """The groups with their options, or the options of one group (`options model`, `model list`)."""
    group = args.command if "group" not in args else args.group
    if group is not None and group not in GROUPS:
        raise XpError(f"{group}: no such group{nearest(group, GROUPS)}; groups are {', '.join(GROUPS)}")
    if group is None:
        listed = {name: list(options(name, args.config_dir)) for name in GROUPS}
        print(json.dumps(listed, indent=2) if args.json else groups())
        return ExitCode.OK
    sentences = {name: first_sentence(file) for name, file in options(group, args.config_dir).items()}
    if group == "hardware":
        from xp.hardware import cards

        sentences["auto"] = "This machine"
        sentences["8xB200"] = f"GPUs x card, or nodes x GPUs x card (2x8xH100); cards: {', '.join(cards())}"
    if args.json:
        print(json.dumps([{"name": name, "about": about} for name, about in sentences.items()], indent=2))
    else:
        show_options(sentences)
    return ExitCode.OK


def first_sentence(file: Path) -> str:
    """Description of an option: the first sentence of the comment that its file begins with."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("# @package")]
    comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"(?<=[^ .]{3})\. ", comment)[0].rstrip(".")  # not after "Dr."


def show_options(sentences: Mapping[str, str]) -> None:
    """Prints one line for each option: its name and what it is."""
    width = max(map(len, sentences), default=0)
    for name, about in sentences.items():
        print(wrapped(f"  {shown(name):{width}}  {shown(about)}".rstrip()))


def parity(args: Namespace) -> int:
    """Prints what each backend receives of every key, or of the keys below the given prefixes."""
    from xp.cli.parity import as_json, below, lines, refused, rows, specs_of

    prefixes = [text for text in args.overrides if _is_key(text)]
    specs = specs_of([text for text in args.overrides if not _is_key(text)], args.config_dir)
    table = below(rows(specs), prefixes)
    if args.json:
        print(as_json(table))
        return ExitCode.OK
    print("\n".join(map(wrapped, lines(table))))
    for name, reasons in refused(specs).items():
        print(wrapped(f"{name} refuses this spec: {'; '.join(reasons)}"))
    return ExitCode.OK


def _is_key(text: str) -> bool:
    """Returns whether a word names a key; any other word is an override, which is checked when composing."""
    return "=" not in text and not text.startswith(("-", "~", "+"))


def explain(args: Namespace) -> int:
    """Explains keys (value, origin, meaning, rendering) and metrics: `explain KEY|METRIC ... [overrides]`."""
    from xp.cli.explain import explain as explained
    from xp.cli.explain import explain_metric, is_metric, key_json, metric_json
    from xp.cli.parity import specs_of
    from xp.composition.faults import every_key, same_key

    keys = [text for text in args.overrides if _is_key(text)]
    overrides = [text for text in args.overrides if not _is_key(text)]
    if not keys:
        raise XpError("explain takes a key or a metric: python -m xp explain algorithm.kl_estimator [overrides]")
    metrics = [key for key in keys if is_metric(key)]
    # `learning_rate` is a metric, and a key of one section.
    keys = [path for key in keys if (path := same_key(key, every_key()) if is_metric(key) else key) is not None]
    if not args.json:
        for metric in metrics:
            print("\n".join(map(wrapped, explain_metric(metric))))
    entries = [row for metric in metrics for row in metric_json(metric)]
    if keys:
        spec, specs = compose(overrides, args.config_dir), specs_of(overrides, args.config_dir)
        for key in keys:
            if args.json:
                entries += key_json(key, spec, specs, overrides, args.config_dir)
            else:
                print("\n".join(map(wrapped, explained(key, spec, specs, overrides, args.config_dir))))
    if args.json:
        print(json.dumps(entries, indent=2, ensure_ascii=False, default=str))
    return ExitCode.OK


def doctor(args: Namespace) -> int:
    """Checks this machine against the plan; the exit code is that of the first fault."""
    from xp.doctor import examine, exit_code

    findings = []
    for finding in examine(compose(args.overrides, args.config_dir), args.slots):
        if not args.json:
            print(wrapped(str(finding)), flush=True)
        findings.append(finding)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    return exit_code(findings)


def show_config(args: Namespace) -> int:
    """Prints the composed configuration as YAML, or one section of it."""
    import yaml

    text = to_yaml(compose(args.overrides, args.config_dir))
    if args.package is None:
        print(text, end="")
        return ExitCode.OK
    node = yaml.safe_load(text)
    for part in args.package.split("."):
        if not isinstance(node, dict) or part not in node:
            known = ", ".join(node) if isinstance(node, dict) else "no keys"
            raise XpError(f"--package {args.package}: no section {part}; there are: {known}")
        node = node[part]
    print(yaml.safe_dump(node, sort_keys=False, allow_unicode=True), end="")
    return ExitCode.OK


def completion(args: Namespace) -> int:
    """Prints the script for completion in a shell."""
    from xp.cli.completion import script

    print(script(args.shell))
    return ExitCode.OK
