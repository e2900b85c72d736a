"""What the annex's launchers share: YAML for people, the shell that runs a stage, its part of a log, and its secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from xp.execution.launchers.base import StageContext
from xp.execution.launchers.service import BY_ADDRESS, LOCKED
from xp.lib.secrets.redaction import resolve
from xp.planning.runtimes import AFTER_LOCK, RuntimeLock

BEGIN = "xp-stage"
EXIT_CODE = "xp-exit-code"
"""Beginnings of lines in a log, before and after a stage of a chain, since services report no exit code of a stage."""


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes texts of several lines as blocks, and repeats values."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def to_yaml(documents: Sequence[Any]) -> str:
    """Documents as YAML for people."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)


def stage_lines(job: str, *, is_chain: bool) -> list[str]:
    """Lines of bash that define `run_stage STAGE PYTHON JOB_SPEC`: this node's part of a stage.

    Args:
        job: id of the job that claims the stage, as a word of bash.
        is_chain: whether the log gets the begin and the end of each stage, and not only a failure.
    """
    told = "" if is_chain else '[ "$code" = 0 ] || '
    return [
        "run_stage() {",
        *([f'  echo "{BEGIN} $1"'] if is_chain else []),
        '  if [ "$XP_NODE" = 0 ]; then',
        f'    "$2" -m xp.execution.launchers.node.on_node "{job}" "$3" &',
        "  else",
        '    "$2" -m xp.execution.launchers.node.member "$3" "$XP_MAIN_NODE" &',
        "  fi",
        "  child=$!",
        "  trap 'kill -TERM \"$child\"' TERM",
        '  while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done',
        f'  {told}echo "{EXIT_CODE} $1 $code"',
        '  [ "$code" = 0 ] || exit "$code"',
        "}",
    ]


def code_in(log: str, stage: str) -> int | None:
    """The last exit code of a stage in a log; None if there is none."""
    codes = re.findall(
        rf"^(?:\([^)]*\) )?{EXIT_CODE} {re.escape(stage)} (\d{{1,3}})\s*$", log, re.MULTILINE
    )
    return int(codes[-1]) if codes else None


def stage_log(log: str, stage: str) -> str:
    """The part of a chain's log that is a stage's; the whole log, if it is not of a chain."""
    if not re.search(rf"^{BEGIN} ", log, re.MULTILINE):
        return log
    parts = re.split(rf"^{BEGIN} (\S+)\n", log, flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return re.sub(rf"^{EXIT_CODE} .*\n", "", texts.get(stage, ""), flags=re.MULTILINE)


def install_lines(uv: str, python: str, directory: str, lock: RuntimeLock) -> list[str]:
    """Commands that install a lock's files from a directory into a Python."""
    lines = []
    for file in lock.files:
        how = BY_ADDRESS if file.name == AFTER_LOCK else LOCKED
        lines.append(
            f"{uv} pip install --python {python} {how} --requirements {directory}/{file.name}"
        )
    return lines


def secret_values_of(stages: Sequence[StageContext]) -> dict[str, str]:
    """Values of the secrets of these stages and of their trackers."""
    names = sorted({name for pair in stages for name in pair.secrets})
    values = {name: value for _, context in stages for name, value in context.secrets.items()}
    missing = [name for name in names if name not in values]
    return {name: value for name, value in (values | resolve(missing)).items() if name in names}
