"""SGLang has the classes of docs/models.md, and lacks those that the page says it lacks."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tools.checkpoints import ENGINES, checkpoints


def test_sglang_has_the_classes_of_the_table() -> None:
    package = importlib.util.find_spec("sglang")
    if package is None or package.origin is None:
        pytest.skip("SGLang is in a virtual environment of its own: make test-sglang")
    models = Path(package.origin).parent / "srt/models"
    code = "\n".join(file.read_text(encoding="utf-8") for file in models.glob("*.py"))
    recorded = json.loads(ENGINES.read_text(encoding="utf-8"))["SGLang"]["classes"]
    names = {one.class_name for one in checkpoints()}
    found = {name for name in names if re.search(rf"^class {name}\b", code, re.MULTILINE)}
    assert found == {*recorded}
    assert names - found
