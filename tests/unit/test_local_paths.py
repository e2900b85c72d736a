"""Paths that are addresses are refused: as a path, `s3://bucket/x` would be a directory called `s3:` here."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.__main__ import main
from xp.composition import compose


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
