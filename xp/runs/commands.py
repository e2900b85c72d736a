"""Commands of xp in its messages, for people to type."""

from __future__ import annotations

import shlex
from pathlib import Path


def xp_command(words: str, outputs: Path) -> str:
    """A command, with the outputs root unless it is the default one."""
    default = outputs.absolute() == Path("outputs").absolute()
    return f"python -m xp {words}" + ("" if default else f" {shlex.quote(f'outputs={outputs}')}")


def resume_command(run_id: str, outputs: Path) -> str:
    """The command that continues a run."""
    return xp_command(f"resume={run_id}", outputs)
