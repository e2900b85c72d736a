"""`import xp`: the notebook of the docs in a real kernel, exit codes and imports."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import xp
from tests.support.child import ended
from tests.support.report_run import make_run
from xp.composition import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_shows_plan_run_curve_and_comparison(tmp_path: Path) -> None:
    read = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(read, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in read.cells if cell.cell_type == "code" and cell.outputs]
    last = {cell.source.splitlines()[0]: cell.outputs[-1] for cell in cells}
    shown = {line: str(one.get("data", one)) for line, one in last.items()}
    assert "the machine: 2 cores" in shown["xp.plan(spec)"]
    assert "reward   " in shown["first"]
    assert "held-out reward after" in shown["first"]
    assert (
        "image/png"
        in shown['axes = first.metrics.plot(x="step", y="reward/avg_raw_reward", label="seed 1")']
    )
    assert "was shown" in shown['xp.compare(f"{first.name}@0", first).verdict']


def test_episodes_are_a_table_beside_an_iteration(tmp_path: Path) -> None:
    make_run(tmp_path, "mine")
    episodes = xp.load("mi", outputs=tmp_path).episodes()
    assert len(list(episodes)) == len(episodes) == 4 * 8 + 2 * 20
    rows = list(
        episodes.table.to_dict("records") if hasattr(episodes.table, "to_dict") else episodes.table
    )
    assert len(rows) == len(episodes)
    assert {"task", "phase", "step", "reward", "turns"} <= rows[0].keys()


def test_a_comparison_takes_what_load_takes(tmp_path: Path) -> None:
    make_run(tmp_path, "first", gain=0.0)
    second = make_run(tmp_path, "second", gain=1.0)
    differences = {
        xp.compare(one, other, outputs=tmp_path).difference
        for one in (
            "first",
            "fir",
            tmp_path / "runs/first",
            xp.load("first", outputs=tmp_path),
            f"{second}@0",
        )
        for other in ("second", str(second))
    }
    assert differences == {1.0}
    with pytest.raises(xp.XpError, match="no such"):
        xp.compare("nothing", "second", outputs=tmp_path)


def test_importing_xp_imports_nothing_else() -> None:
    code = "import sys, xp; print([m for m in sys.modules if m.startswith(('xp.', 'hydra', 'pydantic', 'torch'))])"
    assert ended([sys.executable, "-c", code]).stdout == "[]\n"
    code = "import sys, xp; xp.plan(xp.compose()); print([m for m in ('torch', 'pandas', 'scipy') if m in sys.modules])"
    assert ended([sys.executable, "-c", code]).stdout == "[]\n"
