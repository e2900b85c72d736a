"""The doctor: every fault of a machine is a line with the fix, and the exit code of the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny import tokenizer_and_model
from xp.__main__ import main
from xp.checks.doctor.finding import Finding, Verdict
from xp.checks.doctor.machine import accelerators, disk, versions
from xp.checks.doctor.reach import environments, secrets
from xp.checks.doctor.template import chat_template
from xp.composition import compose
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.errors import ExitCode
from xp.planning.plan import build_plan


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (
        "xp.lib.python_program.TIMEOUT_S",
        "xp.checks.doctor.reach.DEADLINE_S",
        "xp.envs.slots.DEADLINE_S",
    ):
        monkeypatch.setattr(limit, DEADLINE_S)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    return findings[0]


def stages(*overrides: str):  # type: ignore[no-untyped-def]
    return build_plan(compose(overrides), "r").stages


def test_versions_are_held_against_the_pins() -> None:
    findings = list(
        versions(
            compose(["backend.pins={trl: 1.16.0, transformers: 9.9.9, no-such-package: 0.0.1}"]), ()
        )
    )
    said = {
        finding.text.split()[0]: finding for finding in findings if finding.subject == "version"
    }
    assert said["trl"].verdict is Verdict.OK
    assert "xp's rendering was tested with 9.9.9" in said["transformers"].text
    assert "pip install 'transformers==9.9.9'" in said["transformers"].text
    assert "is not installed" in said["no-such-package"].text


def nvidia_smi(directory: Path, rows: str) -> None:
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("rows", "verdict", "expected"),
    [
        ("", Verdict.FAULT, "the plan needs 2 x a100-80gb and nvidia-smi shows no GPU"),
        ("NVIDIA A100-SXM4-80GB, 81920\\n", Verdict.FAULT, "nvidia-smi shows 1 GPU;"),
        ("NVIDIA H100 80GB HBM3, 81559\\n" * 2, Verdict.FAULT, "this is NVIDIA H100"),
        (
            "NVIDIA A100-SXM4-40GB, 40960\\n" * 2,
            Verdict.FAULT,
            "40 GB and hardware.accelerator_memory_gb is 80",
        ),
        ("NVIDIA A100-SXM4-80GB, 81920\\n" * 2, Verdict.OK, "NVIDIA A100-SXM4-80GB, 80 GB"),
    ],
)
def test_accelerators_are_held_against_the_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, verdict: Verdict, expected: str
) -> None:
    nvidia_smi(tmp_path, rows)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    finding = next(iter(accelerators(compose(["env=whodunit", "hardware=a100x2"]))))
    assert finding.verdict is verdict
    assert expected in finding.text


def test_a_disk_that_is_too_small_is_a_fault(tmp_path: Path) -> None:
    assert only(list(disk(compose([]), tmp_path / "not" / "yet"))).verdict is Verdict.OK
    spec = compose(["env=whodunit", "hardware=a100x4", "training.keep_checkpoints=100000"])
    finding = only(list(disk(spec, tmp_path)))
    assert finding.verdict == Verdict.FAULT
    assert finding.code == ExitCode.RESOURCE
    assert "lower training.keep_checkpoints" in finding.text


def test_a_secret_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["env.secrets.token.from_env=MY_TOKEN"]
    monkeypatch.delenv("MY_TOKEN", raising=False)
    finding = only(list(secrets(compose(overrides), stages(*overrides))))
    assert finding.verdict == Verdict.FAULT
    assert finding.code == ExitCode.SECRET
    monkeypatch.setenv("MY_TOKEN", "sesame-sesame")
    finding = only(list(secrets(compose(overrides), stages(*overrides))))
    assert finding.verdict is Verdict.OK
    assert "sesame" not in str(finding)


@pytest.mark.integration
def test_an_environment_answers_and_a_split_that_it_has_not_is_named() -> None:
    answers, slots = environments(compose(["env=echo"]), 4)
    assert answers.verdict == Verdict.OK
    assert slots.verdict == Verdict.OK
    assert "holds 4 idle sessions at the same time" in slots.text
    finding = only(list(environments(compose(["env=multiply", "env.train.split=nosuch"]))))
    assert "has no split nosuch" in finding.text


@pytest.mark.integration
def test_a_tokenizer_that_is_here_is_looked_at_in_the_trainers_python(tmp_path: Path) -> None:
    tokenizer_and_model()[0].save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (tmp_path / "model.safetensors").touch()
    finding = only(list(chat_template(compose(["model=hf", f"model.path={tmp_path}"]), tmp_path)))
    assert (finding.verdict, "keeps earlier turns" in finding.text) == (Verdict.OK, True), finding


@pytest.mark.integration
def test_a_template_may_be_longer_than_an_argument_of_a_program(tmp_path: Path) -> None:
    """Linux lets a program have no argument above 128 kB."""
    tokenizer, _ = tokenizer_and_model()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (tmp_path / "model.safetensors").touch()
    template = tmp_path / "long.jinja"
    template.write_text(f"{{# {'é' * 200_000} #}}{tokenizer.chat_template}", encoding="utf-8")
    spec = compose(["model=hf", f"model.path={tmp_path}", f"model.template={template}"])
    finding = only(list(chat_template(spec, tmp_path)))
    assert (finding.verdict, "keeps earlier turns" in finding.text) == (Verdict.OK, True), finding


@pytest.mark.integration
def test_the_command_goes_on_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    assert (
        main(["doctor", "env=multiply", "training.micro_batch_size=7", "upload_rollouts=true"])
        == ExitCode.PLAN
    )
    out = capsys.readouterr().out
    assert "FAULT plan" in out
    assert "FAULT secret" in out
    assert "ok    environment" in out
    assert list(tmp_path.iterdir()) == []


def test_with_modal_this_machines_disk_python_and_gpus_are_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(
        ["doctor", "env=multiply", "model=qwen2.5-3b-instruct", "hardware=h100x8", "launcher=modal"]
    )
    looked_at = {line.split()[1] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert {"plan", "launcher"} <= looked_at
    assert looked_at.isdisjoint({"accelerators", "host", "disk", "python", "version", "checkout"})
