"""`import xp`: the notebook of the docs in a real kernel, and what the runs that it made give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import xp
from xp.composition import ROOT
from xp.errors import ExitCode

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
OVERRIDES = (
    *("training.num_steps=2", "training.prompts_per_step=2", "training.micro_batch_size=16"),
    *("env.train.num_tasks=16", "env.held_out.num_tasks=8"),
)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    """First line of each code cell -> its last output as text, and the outputs root."""
    directory = tmp_path_factory.mktemp("notebook")
    read = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    NotebookClient(read, timeout=600, resources={"metadata": {"path": str(directory)}}).execute()
    cells = [cell for cell in read.cells if cell.cell_type == "code" and cell.outputs]
    last = {cell.source.splitlines()[0]: cell.outputs[-1] for cell in cells}
    return {line: str(one.get("data", one)) for line, one in last.items()}, directory / "outputs"


def test_the_notebook_shows_plan_run_curve_and_comparison(notebook: tuple[dict[str, str], Path]) -> None:
    shown, _ = notebook
    assert "the machine: 2 cores" in shown["xp.plan(spec)"]
    assert "<polyline points=" in shown["first"]
    assert "held-out reward after" in shown["first"]
    assert "image/png" in shown['axes = first.metrics.plot(x="step", y="reward/avg_raw_reward", label="seed 1")']
    assert "was shown" in shown['xp.compare(f"{first.name}@0", first).verdict']


def test_a_run_gives_what_its_files_hold(notebook: tuple[dict[str, str], Path]) -> None:
    outputs = notebook[1]
    table = xp.runs(outputs=outputs)
    assert sorted(table["seed"]) == [1, 2]
    run = xp.load(table.loc[table["seed"] == 2, "run"].item(), outputs=outputs)
    assert run.spec.model_dump(exclude={"outputs"}) == xp.compose(*OVERRIDES, "seed=2").model_dump(exclude={"outputs"})
    assert (run.status, run.verdict) == ("succeeded", "flat")
    assert list(run.metrics["step"]) == [1, 2]
    # Two steps of 2 x 8 episodes, and 8 held-out tasks before and after.
    assert len(list(run.episodes())) == 48
    assert run.held_out["after"].num_scored == 8
    assert (run.model_path / "model.safetensors").is_file()


def test_without_pandas_tables_are_lists(
    notebook: tuple[dict[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = xp.runs(outputs=notebook[1])
    assert [row["status"] for row in rows] == ["succeeded", "succeeded"]
    metrics = xp.load(rows[0]["run"], outputs=notebook[1]).metrics
    assert [line["step"] for line in metrics] == [1, 2]


def test_a_fault_has_the_commands_exit_code(tmp_path: Path) -> None:
    with pytest.raises(xp.XpError, match="no such run: nothing") as missing:
        xp.load("nothing", outputs=tmp_path)
    assert missing.value.code is ExitCode.RUN_DIR
    with pytest.raises(xp.XpError) as refused:
        xp.plan(xp.compose("backend=slime"))
    assert refused.value.code is ExitCode.PLAN


def test_importing_xp_imports_nothing_else() -> None:
    code = "import sys, xp; print([m for m in sys.modules if m.startswith(('xp.', 'hydra', 'pydantic', 'torch'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    code = "import sys, xp; xp.plan(xp.compose()); print([m for m in ('torch', 'pandas', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
