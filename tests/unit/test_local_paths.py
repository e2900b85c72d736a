"""Paths that are addresses are refused: as a path, `s3://bucket/x` would be a directory called `s3:` here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from xp.__main__ import main
from xp.composition import compose
from xp.composition.model import name_of
from xp.errors import XpError
from xp.worker.tiny_model import SHIPPED


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("outputs", "s3://bucket/x"),
        ("outputs", "s3:/bucket"),
        ("model.path", "hf://org/name"),
        ("backend.runtime.python", "file:///tmp/x"),
        ("launcher.secrets_file", "gs://bucket"),
    ],
)
def test_an_address_where_a_path_belongs_is_refused(
    key: str,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "model=qwen3-4b", f"{key}='{address}'"]) == 2
    message = capsys.readouterr().err
    assert (
        f"{key}: {address} is a URL, but a path of this machine is needed: copy or mount it"
        in message
    )
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_the_hub_is_answered_with_the_models_id(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["plan", "model=hf", "model.path=https://huggingface.co/Qwen/Qwen3-4B/tree/main"]) == 2
    )
    assert "is a page of the hub; its model is written Qwen/Qwen3-4B" in capsys.readouterr().err


def test_an_id_of_the_hub_and_a_directory_are_still_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert compose(["model=qwen3-4b", "model.path=Qwen/Qwen3-4B"]).model.path == "Qwen/Qwen3-4B"
    (tmp_path / "x").mkdir()
    for part in ("tokenizer.json", "model.safetensors"):
        (tmp_path / "x" / part).touch()
    (tmp_path / "x" / "config.json").write_text(
        '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}'
    )
    assert compose(["model=hf", "model.path=./x"]).model.path == str(tmp_path / "x")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/runs/r-1/model", "r-1-model"),
        ("/r/checkpoints/checkpoint-8", "checkpoints-checkpoint-8"),
        ("latest", "latest"),
        ("Org/My Model", "my-model"),
        ("/c/models--Org--Tiny/snapshots/0a1b", "tiny"),
        ("..", "model"),
    ],
)
def test_a_model_is_named_by_the_last_part_of_its_path_that_tells_it(path: str, name: str) -> None:
    assert name_of(path) == name


def test_a_teacher_below_the_outputs_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SHIPPED, tmp_path / "out/kept/by/me")
    words = ["algorithm=opd", "outputs=out", "algorithm.distill.teacher=kept/by"]
    distill = compose([*words[:2], f"{words[2]}/me"]).algorithm.distill
    assert distill is not None
    assert distill.teacher == "kept/by/me"
    with pytest.raises(XpError, match="kept/by/others"):
        compose([*words[:2], f"{words[2]}/others"])
