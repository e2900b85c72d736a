"""Loads functions of the user's as a stage does, in the trainer's Python; the doctor runs it.

    python -m xp.worker.user_functions '[["reward_fn", "package.module:function"]]'

It prints a JSON object: function -> why it cannot be loaded, or null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Final

from xp.episode.advantages import load_advantage_fn
from xp.episode.group import load_group_fn
from xp.episode.shaping import load_shape
from xp.tasks.curriculum import load_weights_fn

LOADERS: Final[Mapping[str, Callable[[str], object]]] = {
    "reward_fn": load_shape,
    "group_reward_fn": load_group_fn,
    "advantage_fn": load_advantage_fn,
    "curriculum": load_weights_fn,
}
"""Last part of a key of the spec -> function that loads what the key names."""


def load_fault(kind: str, name: str) -> str | None:
    """Why a function cannot be loaded. None means that it can.

    Args:
        kind: key of LOADERS.
        name: `package.module:function`.
    """
    try:
        LOADERS[kind](name)
    except Exception as error:  # the user's module may raise anything
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    print(json.dumps({name: load_fault(kind, name) for kind, name in json.loads(sys.argv[1])}))
