"""Large imports: no garbage collection meanwhile, and collections again thereafter."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xp.lib.load import import_large


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_no_collection_runs_during_a_large_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xp_test_large.py").write_text("import gc\nwas_enabled = gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_large("xp_test_large")
    assert sys.modules.pop("xp_test_large").was_enabled is False
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
