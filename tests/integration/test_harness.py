"""Episodes of real programs without a container: their rewards, limits and faults, and what is left after them."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.cases import few
from tests.support.fake_session import call
from tests.support.harbor_tasks import write_task
from tests.support.harness_programs import PROGRAMS, SHELL, harness, play
from tests.support.harness_programs import place as place
from xp.__main__ import main
from xp.contrib.contracts.provider import ProviderSuite, lent
from xp.envs.base import Provider, Task
from xp.envs.config import load_provider
from xp.episode.outcome import EpisodeStatus

HELLO = call("bash", command="echo hello > hello.txt")
FINISHED = EpisodeStatus.FINISHED
TRUNCATED = EpisodeStatus.TRUNCATED
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name in ("a", "b"):
        write_task(folder / name)
    return folder


class TestHarness(ProviderSuite):
    """The contract of every provider."""

    num_visits = 4  # Each starts a program.

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, tasks: Path) -> Iterator[Provider]:
        yield from lent(load_provider(harness(tasks), os.environ))

    @pytest.fixture
    def closed(self, tasks: Path) -> Provider:
        return load_provider(harness(tasks), os.environ)


def test_a_program_that_solves_its_task_has_the_verifiers_reward(tasks: Path) -> None:
    settings = {"temperature": 0.0, "seed": 7.0, "top_p": 0.5}  # Recorded, and without an effect.
    flags = [f"{name}={value}" for name, value in settings.items()]
    config = harness(
        tasks, options={"command": " ".join([SHELL, *flags, "parallel_tool_calls=false"])}
    )
    two = call("bash", command="cat hello.txt") + call("bash", command="echo 2")
    outcome, episode = play(config, f"I write it. {HELLO}", two, "Done.")
    assert outcome.status == FINISHED
    assert outcome.reward == 1.0
    assert next(one["content"] for one in episode.opening) == "You use bash."
    answers = [[(one["role"], one["content"]) for one in turn.messages] for turn in episode.turns]
    assert answers == [[("tool", "")], [("tool", "hello\n")], []]  # One call of two.
    assert outcome.grader["program_requests"] == 3.0
    assert {name: outcome.grader[f"client_{name}"] for name in settings} == settings
    assert outcome.num_tool_calls == 3
    assert outcome.num_malformed == 0


KILL = "; kill -KILL $PPID"
EMBED = 'curl -s -d "{}" -H "x-api-key: $OPENAI_API_KEY" $OPENAI_BASE_URL/embeddings'
ENDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], EpisodeStatus, dict[str, float]]] = {
    "fails after requests": (
        "",
        {},
        (HELLO, call("bash", command=f"true{KILL}")),
        FINISHED,
        {"program_failed": 1},
    ),
    # The policy sends it by a tool, and must not void its own episode.
    "is refused": (
        "",
        {},
        (HELLO, call("bash", command=EMBED + KILL)),
        TRUNCATED,
        {"program_refused": 1},
    ),
    # It is told to stop, and ends.
    "at a limit": (
        "",
        {"max_turns": 1},
        (HELLO,),
        TRUNCATED,
        {"program_limit": 1, "program_failed": 0},
    ),
    "after its time": (
        " late",
        {"options": {"timeout_s": 2.0}},
        (HELLO,),
        TRUNCATED,
        {"program_timed_out": 1},
    ),
    "sends requests again": (
        " retry",
        {},
        (HELLO, "Done."),
        FINISHED,
        {"program_requests": 2, "program_retries": 2},
    ),
}
"""Flag of the program, changes of the rules, the policy's turns, the episode's status and numbers."""


@pytest.mark.parametrize("name", ENDS)
def test_what_a_program_left_is_scored_however_it_ends(tasks: Path, name: str) -> None:
    flag, changes, turns, status, numbers = ENDS[name]
    options = {"command": SHELL + flag, **changes.get("options", {})}
    outcome, _ = play(harness(tasks, **{**changes, "options": options}), *turns)
    assert outcome.status == status
    assert outcome.reward == 1.0
    assert {one: outcome.grader[one] for one in numbers} == numbers


def test_a_malformed_call_reaches_the_program_as_a_text(tasks: Path) -> None:
    outcome, episode = play(harness(tasks), "<tool_call>{no json</tool_call>")
    assert outcome.status == FINISHED
    assert outcome.reward == 0.0
    assert outcome.num_malformed == 1
    assert not episode.turns[0].messages


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("true", "before it asked the model anything"),
        (f"{SHELL} n=2", "n=2 is not supported"),
        (EMBED, "/v1/embeddings: not served"),
    ],
)
def test_what_is_no_fault_of_the_policy_makes_the_episode_void(
    tasks: Path, command: str, reason: str
) -> None:
    config = harness(tasks, options={"command": command}, retries_per_episode=0)
    outcome, _ = play(config, HELLO)
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert reason in str(outcome.void_reason)


def asked(one: Any, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    """Status and content of the endpoint's answer in a session."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        one._server.url + path, data, {"x-api-key": one._key if key is None else key}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None


def test_a_key_is_of_one_episode_while_it_lasts(tasks: Path) -> None:
    provider = load_provider(harness(tasks), os.environ)
    one: Any = provider.open(Task("x", "train", 0))
    keys = (one._key, "", f"{one._key}0", "xp-1-x")
    assert [asked(one, "/v1/models", key=key)[0] for key in keys] == [200, 401, 401, 401]
    one.close()
    assert asked(one, "/v1/models")[0] == 409
    provider.close()
    with pytest.raises(urllib.error.URLError):
        asked(one, "/v1/models")


def test_rows_are_scored_by_a_command_that_alone_sees_the_answer(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        json.dumps({"prompt": "Read n.", "answer": "7", "files": {"data/n": "7"}}) + "\n"
    )
    check = "python -c 'import json, sys; row, answer = map(open, sys.argv[1:]);"
    check += ' sys.exit(json.load(row)["answer"] != answer.read())\' {row_file} {answer_file}'
    config = harness(None, rows=str(rows), options={"grade": check})
    outcome, episode = play(
        config, call("bash", command="cat data/n; grep -rl answer $XP_ROOT/app $XP_ROOT/tmp"), "7"
    )
    assert outcome.reward == 1.0
    assert episode.turns[0].messages[0]["content"] == "7"
    assert play(config, "8")[0].reward == 0.0
    forged = call("bash", command="echo 1 > $XP_ROOT/logs/verifier/reward.txt")
    assert play(config, forged, "8")[0].reward == 0.0
    broken = harness(
        None, rows=str(rows), options={"grade": "no_such_grader"}, retries_per_episode=0
    )
    assert "the grading command failed (code 127)" in str(play(broken, "7")[0].void_reason)


@pytest.mark.parametrize("wire", few(["chat", "anthropic", "responses"], 2))
def test_the_vendors_own_clients_read_the_events_of_each_wire(tasks: Path, wire: str) -> None:
    command = "python {program}/client_agent.py {prompt_file} " + wire
    two = HELLO + call("bash", command="cat thoughts")
    turns = (f"<think>\nSo.\n</think>\n\nI write it. {two}", "<think>\nYes.\n</think>\n\nDone.")
    outcome, episode = play(harness(tasks, options={"command": command}), *turns)
    assert outcome.status == FINISHED
    assert outcome.reward == 1.0
    assert outcome.grader["program_failed"] == 0.0
    assert [one["content"] for one in episode.turns[0].messages] == ["", "So."]
    assert [one["role"] for one in episode.opening] == ["user"]


@pytest.mark.parametrize(
    ("agent", "name", "made", "last"),
    [
        (
            "mini-swe-agent",
            "mini",
            HELLO,
            call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ),
        (
            "claude-code",
            "claude",
            call("Bash", command="echo hello > hello.txt", description="Write."),
            "Done.",
        ),
        ("codex", "codex", call("exec_command", cmd="echo hello > hello.txt"), "Done."),
        (
            "opencode",
            "opencode",
            call("bash", command="echo hello > hello.txt", description="Write."),
            "Done.",
        ),
    ],
)
def test_a_published_program_plays_a_task(
    tasks: Path, agent: str, name: str, made: str, last: str
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"needs {agent} on the PATH: make test-programs")
    outcome, _ = play(
        harness(tasks, options={"agent": agent, "command": None}), f"I write it. {made}", last
    )
    assert outcome.status == FINISHED
    assert outcome.reward == 1.0
    assert outcome.num_turns == 2


def solves(body: Mapping[str, Any]) -> dict[str, Any]:
    """A model that writes the file with its first message, and then says so."""
    if any(one["role"] == "tool" for one in body["messages"]):
        return {"content": "Done."}
    function = {"name": "bash", "arguments": json.dumps({"command": "echo hello > hello.txt"})}
    call_of_api = {"id": "call_7", "type": "function", "function": function}
    return {"content": "I write it.", "tool_calls": [call_of_api]}


def test_xp_eval_plays_a_program_with_any_model(tasks: Path, tmp_path: Path) -> None:
    program = (
        f"env.target={tasks}",
        "env.sandbox=none",
        "env.train.split=[]",
        "env.held_out.split=train",
    )
    command = f"env.options.command=python {PROGRAMS}/shell_agent.py {{prompt_file}}"
    with serving(ChatServer(write=solves)) as server:
        model = ("model=endpoint", f"model.url={server.url}", "model.name=stub")
        assert (
            main(["eval", f"outputs={tmp_path / 'out'}", "env=harness", *program, command, *model])
            == 0
        )
        assert server.requests[0]["messages"][0]["content"] == "You use bash."
    (result,) = (
        json.loads(one.read_text()) for one in (tmp_path / "out/evaluations").glob("*/eval.json")
    )
    assert result["summary"]["reward"]["value"] == 1.0
    assert result["summary"]["num_tasks"] == 2
