"""Tasks of the OpenEnv environments, apart from them: whoever reads the tasks need not import OpenEnv and its page."""

from __future__ import annotations

from typing import Any


def counts() -> dict[str, list[dict[str, Any]]]:
    return {
        "train": [{"prompt": "{observation}"}, {"prompt": "Go.", "reset": {"start": 50}}],
        "test": [{"prompt": "{observation}"}],
    }


def over() -> dict[str, list[dict[str, Any]]]:
    return {"train": [{"prompt": "{observation}", "reset": {"start": 100}}]}


def digs() -> dict[str, list[dict[str, Any]]]:
    return {"train": [{"prompt": "Dig."}]}
