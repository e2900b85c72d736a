"""Secrets that nobody declared: jobs and served environments get a list of variables, logs are masked by look."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.support.launching import plan, run, stage
from xp.__main__ import main
from xp.envs.local_server import _child_environ
from xp.execution.launchers import cluster
from xp.execution.launchers.base import Context
from xp.execution.launchers.node.log import LogStream
from xp.lib.secrets.environment import inherited
from xp.lib.secrets.redaction import MASK, Redactor, secret_values

SAMPLES = {
    "AWS_SECRET_ACCESS_KEY": "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "IQoJb3JpZ2luX2VjEXAMPLE",
    "DB_PASSWORD": "hunter22",
    "GITHUB_PAT": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "OPENAI_APIKEY": "sk-proj-0123456789abcdefghij",
    "MODAL_TOKEN_SECRET": "as-0123456789abcdefghijAB",
    "DATABASE_URL": "postgres://app:s3cr3tpw@db.example:5432/app",
    "MYSQL_PWD": "s3cr3tpw2",
    "SLACK_BOT": "xoxb-0123456789-abcdefghij",
    "CI_JOB_JWT": "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "SSH_PRIVATE": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----",
    "HTTPS_PROXY": "http://me:pr0xypass@proxy.example:3128",
    "SLURM_JWT": "a-token-of-the-cluster",
    "VLLM_APIKEY": "2123456789abcdef" * 2,
    "APPTAINERENV_OPENAI_APIKEY": "3123456789abcdef" * 2,
    "PIP_INDEX_URL": "https://ci:t0k3n-of-ci@pypi.example/simple",
}
ORDINARY = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/root",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "HF_HOME": "/data/hf",
    "SLURM_JOB_ID": "4711",
    "RAY_ADDRESS": "10.0.0.1:6379",
    "RAY_AUTH_MODE": "token",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE": "163840",
    "HTTP_PROXY": "http://proxy.example:3128",
    "LC_ALL": "C",
}
OTHERS = {
    "MY_OWN_SETTING": "x",
    "GREETING": "hello",
    "VAULT_ADDR": "https://vault.example",
    "EDITOR": "vi",
}


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user's shell."""
    for name, value in (SAMPLES | OTHERS).items():
        monkeypatch.setenv(name, value)
    return {**ORDINARY, **SAMPLES, **OTHERS}


def test_only_what_is_listed_passes(environ: dict[str, str]) -> None:
    assert inherited(environ) == (ORDINARY, {})


def test_what_looks_secret_is_passed_the_hidden_way(environ: dict[str, str]) -> None:
    asked = {"XP_PASS_ENV": "MY_OWN_SETTING, AWS_*"}
    plain, hidden = inherited({**environ, **asked})
    assert plain == {**ORDINARY, "MY_OWN_SETTING": "x", **asked}
    assert sorted(hidden) == ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_masked_in_a_log(name: str) -> None:
    redactor = Redactor(secret_values({name: SAMPLES[name]}))
    log = io.BytesIO()
    stream = LogStream(log, redactor, lambda _: None, on_screen=False)
    stream.feed(f"connecting with {SAMPLES[name]} now\n".encode())
    stream.close()
    for line in SAMPLES[name].splitlines():
        assert line not in log.getvalue().decode()
    assert MASK in log.getvalue().decode()


@pytest.mark.usefixtures("environ")
def test_a_job_here_gets_no_secret_of_the_shell(tmp_path: Path) -> None:
    run(plan(stage("a", "import os; open('seen', 'w').write('\\n'.join(os.environ))")), tmp_path)
    seen = set((tmp_path / "seen").read_text().splitlines())
    assert not seen & {*SAMPLES, *OTHERS}
    assert {"PATH", "HOME", "XP_RUN_ID"} <= seen


def test_a_served_environment_gets_no_secret_of_the_shell(environ: dict[str, str]) -> None:
    shell = {**environ, "HF_TOKEN": "hf_0123456789abcdefghij"}
    overrides = {"MY_MODEL_URL": "http://127.0.0.1:9/v1"}
    child = _child_environ(shell, overrides, "key", sys.executable)
    assert not set(child) & {*SAMPLES, *OTHERS, "HF_TOKEN"}
    assert child["MY_MODEL_URL"] == overrides["MY_MODEL_URL"]


def test_the_token_for_gated_models_reaches_a_stage_and_no_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdefghij")
    plain, hidden = cluster.inherited(Context("run", 1, tmp_path, "runs/run/attempt_1"))
    assert "HF_TOKEN" not in plain
    assert hidden["HF_TOKEN"] == "hf_0123456789abcdefghij"


def test_ordinary_output_of_a_run_raises_no_false_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that xp itself prints of a plan, with ids, hashes, paths and addresses."""
    assert main(["plan", "--files"]) == 0
    lines = [
        *capsys.readouterr().out.splitlines(),
        "run whodunit_mini-20260101-120000-ab12 at 9f42ba4f4d5c0c1c5f0a0b8e2c7d3f1a6e8b9c0d",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 outputs/tasks/5b21ee",
        "http://127.0.0.1:8265 tcp://10.0.0.1:29500 file:///srv/data/x git@github.com:a/b.git https://host/a@b:c",
        "max_tokens=4096 tokens: 512 token_type_ids key_value_heads=8 <|im_start|> sk-learn risk-averse ak-47",
        "loss 0.1234 reward 0.500 grad_norm 1.2e-05 9/36 [00:12<00:34, 1.2s/it]",
    ]
    assert len(lines) > 100
    redactor = Redactor(secret_values(ORDINARY | OTHERS))
    assert [line for line in lines if redactor.redact(line) != line] == []
