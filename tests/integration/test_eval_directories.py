"""`xp eval` of models of this machine: a Hugging Face directory, and what a training would start from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import few
from tests.support.endpoint_evaluations import TASKS
from tests.support.tiny import tokenizer_and_model
from xp.__main__ import main
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode
from xp.results.evaluation.records import EPISODES

PLAY = (
    *(
        "training.max_prompt_tokens=400",
        "training.max_tokens_per_turn=6",
        "training.max_response_tokens=12",
    ),
    *(
        "model.dtype=float32",
        "model.dialect=hermes",
        "model.tools_prompt=system",
        "eval.concurrency=4",
    ),
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root; its task set is made by the first evaluation."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that nobody has trained, as a Hugging Face directory."""
    place = tmp_path_factory.mktemp("model") / "untrained"
    tokenizer, model = tokenizer_and_model()
    tokenizer.save_pretrained(place)
    model.save_pretrained(place)
    return place


def messages(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each task; episodes are recorded in the order in which they end."""
    return {one["index"]: one["messages"] for one in records}


@pytest.mark.parametrize(
    ("start", "name"), few([("untrained", "untrained"), ("tuned", "untrained:tuned")], 1)
)
def test_a_directory_or_the_checkpoint_of_a_start_is_played_again_after_a_cut(
    outputs: Path, directory: Path, capsys: pytest.CaptureFixture[str], start: str, name: str
) -> None:
    """Each directory's weights are compared with its config.json in a process of seconds."""
    weights = directory.with_name(start)
    # A directory of the user's own options does not make a model's directory an option.
    (outputs / "options").mkdir(exist_ok=True)
    command = ["eval", "env=multiply", *TASKS, f"model={directory}", f"outputs={outputs}", *PLAY]
    command += ["evaluation.num_tasks=4", "--config-dir", str(outputs / "options")]
    if start == "tuned":
        shutil.copytree(directory, weights)
        command.append(f"training.initial_checkpoint={weights}")
    assert main(command) == 0
    pattern = f"*-{name.replace(':', '-')}-????????/{EPISODES}"
    (file,) = (outputs / "evaluations").glob(pattern)
    whole = file.read_text().splitlines()
    file.write_text("\n".join(whole[:2]) + '\n{"torn')  # as if it had been killed
    result = file.parents[1] / "eval.json"
    for place in (result, file.parents[1] / "episodes.parquet"):
        place.unlink()
    assert main(command) == 0
    assert messages(read_trajectories(file)) == messages(json.loads(line) for line in whole)
    assert name in capsys.readouterr().out
    assert json.loads(result.read_text())["model"]["files"]["model.safetensors"][1] == (
        (weights / "model.safetensors").stat().st_mtime_ns
    )
    endpoint = ["model=endpoint", "model.url=http://127.0.0.1:9/v1", "model.name=x"]
    assert (
        main(["eval", *endpoint, "env=multiply", f"training.initial_checkpoint={directory}"])
        == ExitCode.CONFIG
    )
    assert "an endpoint has the weights that it serves" in capsys.readouterr().err


def test_a_missing_engine_is_named_before_anything_is_played(
    outputs: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "eval",
        "env=multiply",
        *TASKS,
        f"model={directory}",
        f"outputs={outputs}",
        "evaluation.num_tasks=3",
    ]
    words += [*PLAY, "eval.engine=vllm", "eval.python=/nowhere/python"]
    assert main(words) == ExitCode.RUNTIME
    assert "/nowhere/python lacks it; give eval.python=PATH" in capsys.readouterr().err
    assert not any(
        '"engine": "vllm"' in one.read_text()
        for one in (outputs / "evaluations").glob("*/request.json")
    )


@pytest.mark.parametrize(
    "model",
    [("endpoint", "model.url=http://127.0.0.1:9/v1", "model.name=x"), ("tiny",)],
    ids=["endpoint", "transformers"],
)
def test_a_python_is_refused_where_no_engine_is_started_in_it(
    model: tuple[str, ...], outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["env=multiply", f"outputs={outputs}", "eval.python=/nowhere/python"]
    name, *more = model
    assert main(["eval", *words, f"model={name}", *more]) == ExitCode.CONFIG
    assert "eval.python=/nowhere/python runs servers of vLLM and SGLang, and none is started" in (
        capsys.readouterr().err
    )
