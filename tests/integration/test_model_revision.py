"""A hub's model is pinned to a commit: found at plan time, fetched by a stage, recorded in the lock."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.child import ended
from tests.support.http_server import HttpServer, Reply, Request, http_server
from xp.backends.slime.worker.config import SlimeTrainConfig
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.contrib.contracts.fields import without_spec
from xp.errors import ExitCode, XpError
from xp.lib.models.files import hub_text, local_directory, pinned_place
from xp.planning.plan import build_plan
from xp.worker.facts import model_facts
from xp.worker.places import teacher_place
from xp.worker.tiny_model import SHIPPED

OLD = "0" * 39 + "1"
NEW = "0" * 39 + "2"
REVISIONS = {"main": NEW, "v1": OLD, OLD: OLD, NEW: NEW}
CHOSEN = ("model=hf", "model.path=Org/Tiny", "model.dtype=float32")


def hub_answer(request: Request) -> Reply:
    """The part of the hub's API that its own client needs to download; the model is the one that xp ships."""
    parts = request.path.strip("/").split("/")
    if parts[:5] == ["api", "models", "Org", "Tiny", "revision"] and parts[5] in REVISIONS:
        return Reply({"id": "Org/Tiny", "sha": REVISIONS[parts[5]]})
    if parts[:5] == ["api", "models", "Org", "Tiny", "tree"]:
        names = (*os.listdir(SHIPPED), "consolidated.safetensors", "onnx/a.json")
        return Reply([{"type": "file", "path": name, "size": 1, "oid": name} for name in names])
    if parts[:3] == ["Org", "Tiny", "resolve"] and (SHIPPED / parts[4]).is_file():
        body = (SHIPPED / parts[4]).read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
            "X-Repo-Commit": REVISIONS[parts[3]],
        }
        return Reply(body, headers=headers)
    return Reply(status=404)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    with http_server(hub_answer) as server:
        monkeypatch.setattr("xp.lib.models.files.HUB_TIMEOUT_S", 30.0)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf/hub"))
        hub_text.cache_clear()
        yield server
        hub_text.cache_clear()


@pytest.mark.parametrize(("revision", "commit"), [("null", NEW), ("v1", OLD)])
def test_a_branch_or_tag_becomes_its_commit_in_the_spec(
    hub: HttpServer, revision: str, commit: str
) -> None:
    spec = compose([*CHOSEN, f"model.revision={revision}"])
    assert spec.model.revision == commit
    assert f"/Org/Tiny/resolve/{commit}/config.json" in hub.paths
    assert spec.model.architecture is not None


def test_a_revision_that_nobody_knows_is_refused(hub: HttpServer) -> None:
    del hub
    with pytest.raises(
        XpError,
        match="revision=v9: it is neither on the hub nor in this machine's cache for Org/Tiny",
    ):
        compose([*CHOSEN, "model.revision=v9"])


def test_every_trainer_starts_from_the_commit(hub: HttpServer) -> None:
    del hub
    plan = build_plan(compose([*CHOSEN, "model.revision=v1"]), "r")
    place = pinned_place("Org/Tiny", OLD)
    (model,) = [stage for stage in plan.stages if stage.name == "model"]
    assert model.done == f"{place}/hub.json"
    train = next(stage for stage in plan.stages if stage.name == "train")
    config = TRLTrainConfig.from_json(train.job.files["runs/r/attempt_1/train/config.json"])
    assert config.start_model == config.reference == place
    assert "Org/Tiny" not in without_spec(train.job.files)
    assert all(
        "model" in stage.needs for stage in plan.stages if stage.name in ("train", "convert")
    )


TEACHER = ("algorithm=opd", "algorithm.distill.teacher=Org/Tiny", "algorithm.distill.revision=v1")


def test_a_teacher_is_fetched_at_its_commit_too(
    hub: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "hardware=h100x8",
        "env=whodunit",
        "model=qwen2.5-1.5b-instruct",
        "backend.convert_model=true",
    )
    del hub
    # The stub's model has neither the policy's network nor its vocabulary.
    monkeypatch.setattr("xp.planning.refusals.teacher_refusals", lambda _: ())
    spec = compose([*TEACHER, "backend=slime", *words])
    assert spec.algorithm.distill is not None
    assert spec.algorithm.distill.revision == OLD
    stages = {stage.name: stage for stage in build_plan(spec, "r").stages}
    place = pinned_place("Org/Tiny", OLD)
    assert stages["teacher"].done == f"{place}/hub.json"
    assert "teacher" in stages["train"].needs
    config = SlimeTrainConfig.from_json(
        stages["train"].job.files["runs/r/attempt_1/train/config.json"]
    )
    assert config.spec.algorithm.distill is not None
    assert teacher_place(config.spec.algorithm.distill) == place
    assert stages["convert_teacher"].needs == ("prepare", "teacher")
    assert place in "".join(stages["convert_teacher"].job.files.values())


def test_the_stage_fetches_the_commit_once_and_the_lock_names_it(
    hub: HttpServer, tmp_path: Path
) -> None:
    plan = build_plan(compose([*CHOSEN, "model.revision=v1"]), "r")
    job = next(stage.job for stage in plan.stages if stage.name == "model")
    (content,) = job.files.values()
    (tmp_path / "config.json").write_text(content)
    place = tmp_path / pinned_place("Org/Tiny", OLD)
    program = [sys.executable, "-m", job.argv[2], "config.json"]
    place.mkdir(parents=True)
    (place / "mine.txt").write_text("of the user's")
    assert ended(program, cwd=tmp_path).returncode == ExitCode.RUN_DIR
    (place / "mine.txt").unlink()
    place.rmdir()
    for _ in range(2):
        done = ended(program, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (
            0,
            f"model: {place.relative_to(tmp_path)}, Org/Tiny at {OLD[:12]}\n",
        )
    assert sorted(os.listdir(place)) == sorted([*os.listdir(SHIPPED), "hub.json"])
    assert (place / "model.safetensors").read_bytes() == (
        SHIPPED / "model.safetensors"
    ).read_bytes()
    assert not [path for path in hub.paths if "consolidated" in path or "onnx" in path]
    facts = dict(model_facts(place))
    expected = dict(model_facts(SHIPPED))
    assert facts == {"model.revision": OLD, **expected}
    # Before the stage, the cache's snapshot of the same commit serves; another commit's does not.
    assert local_directory(pinned_place("Org/Tiny", OLD), tmp_path / "nowhere") is not None
    assert local_directory(pinned_place("Org/Tiny", NEW), tmp_path / "nowhere") is None


def test_without_the_model_or_a_network_the_stage_says_what_to_do(tmp_path: Path) -> None:
    reason = f"Org/Tiny at {OLD[:12]} has no weights (*.safetensors); download it with"
    (tmp_path / "config.json").write_text(
        json.dumps({"name": "Org/Tiny", "commit": OLD, "target": "models/x"})
    )
    snapshot = tmp_path / "hub/models--Org--Tiny/snapshots" / OLD
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    done = ended(
        [sys.executable, "-m", "xp.worker.hub_model", "config.json"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
    )
    assert done.returncode == ExitCode.RUNTIME
    assert reason in done.stderr
    assert not (tmp_path / "models").exists()
