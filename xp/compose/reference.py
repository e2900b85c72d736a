"""Specs of xp's own options and of legal values, from which tests and pages derive how backends handle them.

A user's own overrides are composed in `xp.compose.points`, which uses these specs to explain errors.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from xp.compose.groups import compose_groups, with_plugins
from xp.compose.values import resolve_values
from xp.spec import RunSpec


def reference_spec(options: Mapping[str, str], values: Mapping[str, Any]) -> RunSpec:
    """The spec of some options of xp's, with some values set.

    Args:
        options: group -> option. A model's option must have an architecture.
        values: key path -> value.

    Raises:
        ValueError: a value is not legal.
    """
    composed = compose_groups(tuple(options.items()), with_plugins(()))
    container = copy.deepcopy(composed.container)
    for path, value in values.items():
        *sections, last = path.split(".")
        node: Any = container
        for section in sections:
            node = node[section]
        node[last] = value
    resolve_values(container)
    container["env"] = {"members": {composed.env_name: container["env"]}}
    return RunSpec.model_validate_json(json.dumps(container))
