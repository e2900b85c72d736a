"""`provider: openenv` with OpenEnv's own environments: texts, rewards and ends are those of the classes themselves, for
the same calls, wrong ones included."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.ors_server import rules
from xp.envs.base import Task, ToolResult
from xp.envs.openenv import OpenEnvProvider
from xp.lib.load import load_object

VARIABLE = "OPENENV_PATH"
FINQA = "finqa_env.server.finqa_environment:FinQAEnvironment"
Calls = list[tuple[str, dict[str, Any]]]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenEnv's environments on the path, and one question of FinQA's with a table."""
    if not os.environ.get(VARIABLE):
        pytest.skip(
            f"needs {VARIABLE}=a checkout of OpenEnv: make test-environments {VARIABLE}=..."
        )
    monkeypatch.syspath_prepend(str(Path(os.environ[VARIABLE], "envs")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINQA_DATA_PATH", str(tmp_path))
    monkeypatch.setenv("XP_PASS_ENV", "FINQA_DATA_PATH")
    for folder in ("benchmark_questions", "input_companies/acme"):
        (tmp_path / folder).mkdir(parents=True)
    columns = "id,user_query,company,question,answer"
    (tmp_path / "benchmark_questions/finqa.csv").write_text(
        f"{columns}\n1,What is the profit?,acme,profit?,\\boxed{{5}}\n"
    )
    (tmp_path / "input_companies/tables_cleaned_all_companies.json").write_text("{}")


def played(app: str, calls: Calls, prompt: str) -> tuple[str, list[ToolResult]]:
    """The prompt and the results in xp, by the environment's own server."""
    row = {"prompt": prompt}
    Path("rows.jsonl").write_text(json.dumps(row))
    provider = OpenEnvProvider(
        rules(provider="openenv", serve=app, rows="./rows.jsonl"), os.environ
    )
    session = provider.open(Task("x", "train", 0))
    results = [session.call(*one) for one in calls]
    provider.close()
    return session.prompt()[0]["content"], results


@pytest.mark.parametrize(
    ("app", "environment", "calls", "prompt", "shown"),
    [
        (
            "echo_env.server.app:app",
            "echo_env.server.echo_environment:EchoEnvironment",
            [
                ("echo_message", {"message": "hi"}),
                ("echo_with_length", {"message": "hi"}),
                ("echo_message", {"text": "hi"}),
                ("echo_message", {"message": 1}),
                ("echo", {"message": "hi"}),
            ],
            "{metadata.message}",
            "Echo environment ready!",
        ),
        (
            "finqa_env.server.app:app",
            FINQA,
            [
                ("get_descriptions", {"company_name": "acme"}),
                ("get_descriptions", {}),
                (
                    "sql_query",
                    {"company_name": "acme", "table_name": "t", "query": "select * from t"},
                ),
                ("submit_answer", {"answer": "5"}),
            ],
            "{metadata.question} ({metadata.company})",
            "What is the profit? (acme)",
        ),
    ],
)
def test_calls_of_mcp_tools(
    app: str, environment: str, calls: Calls, prompt: str, shown: str | None
) -> None:
    opening, results = played(app, calls, prompt)
    made = load_object(environment)(**({"data_path": os.getcwd()} if environment == FINQA else {}))
    own_results = load_object("tests.envs_under_test.openenv_counter:own_results")
    expected = asyncio.run(own_results(made, calls))
    assert [(one.text, one.reward, one.finished, one.is_call_error) for one in results] == expected
    assert opening == shown or (shown is None and "What is the profit?" in opening)
