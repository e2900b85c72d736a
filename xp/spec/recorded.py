"""A run's `spec.yaml`, read as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from xp.errors import ExitCode, XpError
from xp.lib.reading import read_text
from xp.lib.text import first_line
from xp.lib.yaml_loader import LOADER


def recorded_spec(file: Path) -> dict[str, Any]:
    """The sections of a spec that xp wrote.

    Raises:
        XpError: (RUN_DIR) the file holds what xp would not write.
    """
    text = read_text(file, ExitCode.RUN_DIR, below=file.parent)
    try:
        value: Any = yaml.load(text, Loader=LOADER)
        json.dumps(value, allow_nan=False)  # a date, a set or bytes are nothing that xp writes
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise XpError(
            f"{file} is not a spec: YAML syntax: {first_line(error)}", ExitCode.RUN_DIR
        ) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise XpError(f"{file} is not a spec: holds no sections", ExitCode.RUN_DIR)
    return value
