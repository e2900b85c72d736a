"""Names become values at launch, from the environment or from .env, or the run does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.errors import ExitCode, XpError
from xp.lib.secrets.redaction import resolve, secret_values
from xp.lib.secrets.shapes import looks_like_secret


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=filed\nB=filed\n")
    assert resolve(["A", "B"], {"A": "held"}) == {"A": "held", "B": "filed"}


def test_every_missing_variable_is_named_with_the_way_to_set_it() -> None:
    with pytest.raises(XpError, match=r"GONE, LOST: .*export GONE=") as caught:
        resolve(["LOST", "GONE", "HERE"], {"HERE": "x"})
    assert caught.value.code == ExitCode.SECRET


def test_an_empty_value_is_a_missing_one() -> None:
    with pytest.raises(XpError, match="EMPTY"):
        resolve(["EMPTY"], {"EMPTY": ""})


def test_nothing_in_a_file_is_expanded_or_run(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "A='$(touch pwned) ${HOME} `id`'\nexport B=\"two\\nlines\"\nC='it is; \"quoted\"' # comment\n"
    )
    assert resolve(["A", "B", "C"], {}) == {
        "A": "$(touch pwned) ${HOME} `id`",
        "B": "two\nlines",
        "C": 'it is; "quoted"',
    }


def test_a_file_that_is_no_text_is_refused_without_showing_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"A=\xff\xfeXPCANARY\n")
    with pytest.raises(XpError, match="UTF-8") as caught:
        resolve(["A"], {})
    assert caught.value.code == ExitCode.SECRET
    assert "XPCANARY" not in str(caught.value)


def test_values_secret_by_name_are_found_and_paths_are_not() -> None:
    environ = {
        "HF_TOKEN": "hf_0123456789ab",
        "MY_API_KEY": "k" * 20,
        "DB_PASSWORD": "hunter2hunter2",
        "TOKENIZERS_PARALLELISM": "false",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "SHORT_KEY": "abc",
        "PATH": "/usr/bin:/bin:/usr/local/bin",
    }
    assert sorted(secret_values(environ)) == sorted(["hf_0123456789ab", "k" * 20, "hunter2hunter2"])


SECRET = """
    OPENAI_APIKEY APIKEY SECRETKEY ACCESSKEY AWS_ACCESSKEY TS_AUTHKEY PRIVATEKEY SSH_PASSKEY TOKEN2 DB_PASSWORD2
    API_KEY1 TOKENS HF_TOKENS GITHUB_TOKENS2 AWS_CREDS DB_PW PGPASS SSHPASS SLACK_WEBHOOK_URL wandb_apikey
    APPTAINERENV_OPENAI_APIKEY MY-API-KEYS
"""
ORDINARY = """
    TOKENIZERS_PARALLELISM HF_TOKENIZER MAX_TOKENS VLLM_MAX_NEW_TOKENS SGLANG_NUM_RESERVED_DECODE_TOKENS NUM_TOKENS
    SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK BYPASS COMPASS MONKEY SACRED RAY_AUTH_MODE DB_PASSWORD_FILE
    HF_PASSING WANDB_PATH NCCL_PXN VLLM_HOTKEY SLURM_PWDX
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_a_name_tells_however_its_words_are_joined_and_numbered(name: str) -> None:
    value = "0123456789abcdef" * 2
    assert list(secret_values({name: value})) == [value]


@pytest.mark.parametrize("name", ORDINARY.split())
def test_ordinary_names_tell_nothing(name: str) -> None:
    assert not looks_like_secret(name)
