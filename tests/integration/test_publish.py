"""A run is published into a directory, and by the hub's own client to a stub of its API."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.evaluations import leave_evaluation
from tests.support.fake_session import RULES, FakeSession, call, steady
from tests.support.http_server import Reply, Request, http_server
from tests.support.tiny import tokenizer_and_model
from xp.__main__ import main
from xp.envs.base import Task
from xp.episode.episode import Episode
from xp.episode.trajectory import TrajectoryWriter, trajectory
from xp.errors import ExitCode
from xp.lib.verified import write_digests
from xp.results.replay.publish import licence_of, model_files

SECRET = "4f9d0c7be21a4a5fb3"
TASKS = {f"multiply/test/{number}": [float(number % 4 > 0)] for number in range(40)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run that has a model, an evaluation and episodes."""
    here = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        assert (
            main(
                [
                    "prepare",
                    "env=multiply",
                    "env.train.num_tasks=4",
                    "env.held_out.num_tasks=4",
                    "name=own",
                ]
            )
            == 0
        )
    (run,) = (here / "outputs/runs").iterdir()
    for one in tokenizer_and_model():
        one.save_pretrained(run / "model")
    write_digests(run / "model")
    leave_evaluation(run, after=TASKS)
    with TrajectoryWriter(run / "attempt_1/train/trajectories/train.jsonl") as writer:
        episode = Episode(Task("multiply", "train", 0), lambda: FakeSession(steady), RULES)
        episode.step(call("win"))
        episode.settle()
        writer.write(
            trajectory(
                episode,
                run="runs/own",
                phase="train",
                step=0,
                sample=0,
                tools="[]",
            )
        )
    return here


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    (place,) = (tmp_path / "here/outputs/runs").iterdir()
    return place


def head_of(text: str) -> dict[str, Any]:
    head: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return head


def test_a_directory_gets_a_model_that_loads_with_its_card_and_the_episodes(run: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["runs", "publish", run.name, "--to", "out"]) == 0
    AutoTokenizer.from_pretrained("out/model")
    model = AutoModelForCausalLM.from_pretrained("out/model")
    assert model.num_parameters() == tokenizer_and_model()[1].num_parameters()
    card = Path("out/model/README.md").read_text()
    assert head_of(card)["library_name"] == "transformers"
    assert "| after training | 0.750 (0.6" in card
    assert "python -m xp run spec.yaml" in card
    assert main(["plan", "out/model/spec.yaml"]) == 0
    (config,) = head_of(Path("out/episodes/README.md").read_text())["configs"]
    assert config == {"config_name": "train", "data_files": "*/*/train.jsonl"}
    (line,) = Path("out/episodes/attempt_1/train/train.jsonl").read_text().splitlines()
    assert json.loads(line)["outcome"]["reward"] == 1.0
    assert main(["runs", "publish", run.name, "--to", "out"]) == ExitCode.RUN_DIR


def test_published_adapters_name_the_hubs_model_and_no_directory_of_this_machine(run: Path) -> None:
    base = f"/home/me/outputs/models/ORG--NAME--{'c' * 40}"
    expected = ("ORG/NAME", "c" * 40)
    (run / "model/adapter").mkdir()
    config = {"base_model_name_or_path": base, "revision": None, "r": 8}
    (run / "model/adapter/adapter_config.json").write_text(json.dumps(config))
    write_digests(run / "model")
    of_hub = {"path": "ORG/NAME", "revision": "c" * 40, "name": "name"}
    spec = yaml.safe_load((run / "spec.yaml").read_text())
    (run / "spec.yaml").write_text(yaml.safe_dump({**spec, "model": {**spec["model"], **of_hub}}))
    place = run.parent.parent / f"models/ORG--NAME--{'c' * 40}"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (place / "README.md").write_text("---\nlicense: other\nlicense_link: LICENSE\n---\n")
    files = model_files(run)
    link = head_of(str(files["README.md"]))["license_link"]
    assert link == f"https://huggingface.co/ORG/NAME/blob/{'c' * 40}/LICENSE"
    adapters = json.loads(str(files["adapter/adapter_config.json"]))
    assert (adapters["base_model_name_or_path"], adapters["revision"]) == expected
    assert "The weights are in float32; the training computed in float32. Its adapters" in str(
        files["README.md"]
    )
    assert not [name for name in files if name.endswith(("digests.json", ".verified.json"))]


def test_a_model_that_is_missing_or_damaged_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "model/config.json").write_text("{}")
    assert main(["runs", "publish", run.name, "--to", "out"]) == ExitCode.RUN_DIR
    assert "is damaged" in capsys.readouterr().err
    shutil.rmtree(run / "model")
    assert main(["runs", "publish", run.name, "--to", "out"]) == ExitCode.RUN_DIR
    assert "has no model" in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_secret_in_an_episode_is_not_published(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", SECRET)
    file = run / "attempt_1/train/trajectories/train.jsonl"
    file.write_text(file.read_text().replace('"won"', f'"{SECRET}"'))
    assert main(["runs", "publish", run.name, "--to", "out"]) == ExitCode.SECRET
    assert not Path("out").exists()


class Hub:
    """The parts of the hub's API that an upload of small files uses."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, bytes]] = {}

    def answer(self, request: Request) -> Reply:
        here = f"http://{request.headers['host']}"
        if request.path == "/api/repos/create":
            requested = request.json
            name = (
                f"{requested.get('type', 'model')}s/{requested['organization']}/{requested['name']}"
            )
            self.repositories[name] = requested
            return Reply({"url": f"{here}/{name.removeprefix('models/')}"})
        if request.path == "/api/validate-yaml":
            is_head = request.json["content"].startswith("---\n")
            return Reply({"errors": [] if is_head else [{"message": "no head"}], "warnings": []})
        if request.path.endswith("/preupload/main"):
            names = [one["path"] for one in request.json["files"]]
            return Reply(
                {
                    "files": [
                        {"path": name, "uploadMode": "regular", "shouldIgnore": False}
                        for name in names
                    ]
                }
            )
        repository = request.path.removeprefix("/api/").removesuffix("/commit/main")
        for line in map(json.loads, request.body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files.setdefault(repository, {})[line["value"]["path"]] = content
        commit = f"{here}/{repository.removeprefix('models/')}/commit/1"
        return Reply({"commitUrl": commit, "commitOid": "1", "hookOutput": ""})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    with http_server(hub.answer) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_stub")
        yield hub
    assert {one.headers.get("authorization") for one in server.requests} - {None} == {
        "Bearer hf_stub"
    }


def test_the_hubs_client_uploads_a_private_model_and_a_data_set(run: Path, hub: Hub) -> None:
    assert main(["runs", "publish", run.name, "--to", "hub:me/mine"]) == 0
    assert {name: one["visibility"] for name, one in hub.repositories.items()} == {
        "models/me/mine": "private",
        "datasets/me/mine-episodes": "private",
    }
    model = hub.files["models/me/mine"]
    assert model["model.safetensors"] == (run / "model/model.safetensors").read_bytes()
    assert head_of(model["README.md"].decode())["tags"] == ["xp", "reinforcement-learning", "grpo"]
    assert "attempt_1/train/train.jsonl" in hub.files["datasets/me/mine-episodes"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "---\nlicense: other\nlicense_name: qwen-research\nlicense_link: LICENSE\n---\n",
            {"license": "other", "license_name": "qwen-research", "license_link": "LICENSE"},
        ),
        ("# A model without a head\n", {"license": "other", "license_name": "of-the-base-model"}),
        (None, {"license": "other", "license_name": "of-the-base-model"}),
    ],
)
def test_the_base_models_licence_is_the_cards(
    tmp_path: Path, text: str | None, expected: dict[str, str]
) -> None:
    if text is not None:
        (tmp_path / "README.md").write_text(text)
    assert licence_of(tmp_path) == expected
