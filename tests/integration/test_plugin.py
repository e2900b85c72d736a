"""A package that pip installed brings a backend, a launcher, a provider, a dialect and options; xp is not changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.child import ended, json_lines

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SAMPLE = Path(__file__).resolve().parents[1] / "sample_plugin"
BASE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)


def install(source: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--target", str(target), str(source)], check=True, capture_output=True, timeout=250
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    install(SAMPLE, target)
    return target


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A network without weights: the sample copies whatever is there."""
    directory = tmp_path / "model"
    directory.mkdir()
    network = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        **dict.fromkeys(BASE, 8),
    }
    (directory / "config.json").write_text(json.dumps(network))
    return directory


SEVERAL = """
import contextlib, io, json, sys
from xp.__main__ import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
        print("plugins:", [name for name in sys.modules if name.startswith("xp_")])
    answers.append((words, code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


def xps(*commands: Sequence[str], path: Path, cwd: Path) -> list[subprocess.CompletedProcess[str]]:
    """Runs commands one after the other in one process that finds the plugin's packages."""
    environ = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{SAMPLE.parents[1]}"}
    command = [sys.executable, "-c", SEVERAL, json.dumps(commands)]
    done = ended(command, cwd=cwd, env=environ, check=True)
    return [
        subprocess.CompletedProcess(*answer) for answer in json.loads(done.stdout.splitlines()[-1])
    ]


def words(model: Path) -> list[str]:
    chosen = [
        "backend=sample",
        "launcher=sample",
        "env=sample_sums",
        "model=hf",
        f"model.path={model}",
    ]
    return [*chosen, "model.dialect=sample", "env.options.largest=4"]


def test_a_run_of_nothing_but_the_plugins_things_ends_well(
    site: Path, model: Path, tmp_path: Path
) -> None:
    chosen = [*words(model), "tracking=sample", "training.prompts_per_step=6"]
    show = ["runs", "show", "run-"]
    planned, done, shown = xps(
        ["plan", *chosen],
        chosen,
        show,
        path=site,
        cwd=tmp_path,
    )
    assert planned.returncode == 0, planned.stderr
    assert "python -m xp_sample.train" in planned.stdout
    assert done.returncode == 0, done.stderr + done.stdout
    run = next((tmp_path / "outputs/runs").glob("run-*"))
    record = json.loads((run / "run.json").read_text())
    assert {stage["launcher"] for stage in record["attempts"][0]["stages"]} == {"sample"}
    metrics = json_lines(run / "metrics.jsonl")
    # No reader but the plugin's own makes a call of what is played.
    assert [(line["episodes/num"], line["reward/avg_raw_reward"]) for line in metrics] == [
        (6.0, 1.0)
    ]
    assert (run / "steps.txt").read_text().splitlines() == [f"1 {len(metrics[0]) - 4}", "True"]
    assert (run / "model/config.json").read_bytes() == (model / "config.json").read_bytes()
    assert (run / "attempt_1/code/xp_sample/train.py").is_file()
    assert json.loads((run / "attempt_1/train/episode.json").read_text())["members"]["sample_sums"][
        "options"
    ] == {"largest": 4}
    assert (shown.returncode, run.name in shown.stdout) == (0, True), shown.stderr


BROKEN = "[xp.launchers]\nbroken = xp_broken\n"
REFUSALS = {
    "env.options.largst=4": "largst: unknown key (did you mean largest?); provider=sample has: largest",
    "env.options.largest=0": "largest=0: should be greater than or equal to 1",
    "launcher.options.nice=77": "nice=77: should be less than or equal to 19",
    "backend.name=smple": "docs/extending.md) (did you mean sample?)",
    "launcher.name=broken": "the package xp-broken 0.1 offers it as xp_broken, which cannot be imported",
}


def test_nothing_of_a_plugin_is_imported_unused_and_a_wrong_name_is_refused_with_what_there_is(
    site: Path, model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "xp_broken.py").write_text("import nowhere_to_be_found\n")
    metadata(broken, "xp-broken", BROKEN)
    commands = [["plan", *words(model), changed] for changed in REFUSALS]
    plain, *refused = xps(["plan"], *commands, path=Path(f"{broken}:{site}"), cwd=tmp_path)
    assert (plain.returncode, plain.stdout.splitlines()[-1]) == (0, "plugins: []")
    for done, reason in zip(refused, REFUSALS.values(), strict=True):
        assert done.returncode == 2
        assert reason in done.stderr
    assert "No module named 'nowhere_to_be_found'" in refused[-1].stderr
    assert not (tmp_path / "outputs").exists()


def contracts(site: Path, tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Runs the plugin's contract tests by themselves.

    In pytest's common directory of temporary files, it would remove at its end what earlier sessions, such as whole
    passes of this suite, have left there: tens of thousands of files each.
    """
    (tmp_path / "contracts.py").write_text(text)
    environ = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{SAMPLE.parents[1]}"}
    words = f"-m pytest -q -p no:cacheprovider -o faulthandler_timeout=120 --basetemp {tmp_path}/inner contracts.py"
    return ended([sys.executable, *words.split()], cwd=tmp_path, env=environ)


@pytest.mark.slow
def test_what_the_plugin_brings_keeps_the_contracts(site: Path, tmp_path: Path) -> None:
    done = contracts(site, tmp_path, (SAMPLE / "contracts.py").read_text())
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_plugin_that_takes_an_own_name_is_refused(tmp_path: Path) -> None:
    metadata(tmp_path, "xp-thief", "[xp.launchers]\nlocal = xp_thief\n")
    (refused,) = xps(["plan"], path=tmp_path, cwd=tmp_path)
    assert refused.returncode == 2
    assert (
        "launcher=local is xp's own, and the package xp-thief 0.1 takes the name too"
        in refused.stderr
    )


def metadata(directory: Path, name: str, entry_points: str) -> None:
    """The package's metadata, as pip installs it."""
    info = directory / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(entry_points)
