"""Checks the user's own flags: refuses flags that xp renders or answers itself, or that Slime does not accept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xp.backends.slime.control.flags import catalog, fault, override_flags
from xp.planning.native_keys import NativeKeys
from xp.planning.rows import Refusal
from xp.spec import RunSpec

ANSWERS = (Path(__file__).with_name("native_keys.toml"),)
SFT_ANSWERS = (Path(__file__).with_name("sft_keys.toml"), *ANSWERS)


def with_aliases(owned: Mapping[str, str]) -> dict[str, str]:
    """Flag -> its field, with the other names of xp's flags."""
    by_dest = {catalog().flags[name].dest: field for name, field in owned.items() if name in catalog().flags}
    return {name: by_dest[flag.dest] for name, flag in catalog().flags.items() if flag.dest in by_dest} | dict(owned)


def override_refusals(spec: RunSpec, keys: NativeKeys, overrides: Mapping[str, Any]) -> Iterator[Refusal]:
    """Faults of the user's own flags; must be called only if the rest of the spec can be rendered.

    Args:
        spec: the spec.
        keys: what the stage's flags mean.
        overrides: the user's own, without dashes.
    """
    for name, values in override_flags(overrides).items():
        reason = keys.fault(name, spec) if name in catalog().flags else None
        if (wrong := reason or fault(name, values)) is not None:
            yield Refusal(f"{keys.place}.{name.removeprefix('--')}", wrong)
