"""10,000 mutated files of runs and of the task store: each is read, or refused with a typed error, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.foreign import contents, leave_programs, leave_run, make_ours, record
from tests.launching import stage
from tests.reliability.test_hostile_files import EPISODE, SUMMARISED
from xp.cli.runs import show_all
from xp.compose import compose, from_container, to_yaml
from xp.episode.metrics_file import read_metrics
from xp.episode.trajectory import read_trajectories
from xp.errors import XpError
from xp.evaluation.records import line_of, summaries
from xp.evaluation.tables import markdown
from xp.evaluation.verdict import diagnose
from xp.launchers.base import Context
from xp.launchers.cluster import read_launches
from xp.launchers.node.job_spec import JobSpec, make_job_spec, read_result
from xp.lib.digest import digest_of
from xp.lib.reading import config_of
from xp.planning.plan import build_plan
from xp.report.data import report
from xp.runs import detached
from xp.runs.held_out import held_out
from xp.runs.leaderboard import leaderboard
from xp.runs.record import read_record, table
from xp.spec.recorded import recorded_spec
from xp.tasks.config import PrepareConfig
from xp.tasks.inspect import list_sets, verify_set
from xp.tasks.manifest import Count, Manifest

pytestmark = pytest.mark.scorecard(43)

KEY = "0" * 20
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), "", "..", "../../x", "/etc/passwd", "a\0b", "\x1b[2J",
    "--help", "-rf", "x" * 5000, [], {}, [[]], {"": {}}, ["../x"], {"..": 1}, "\ud800", "2026-13-01", "${oc.env:HOME}",
    10**308, -(10**400), -1e308, 5e-324,
)  # fmt: skip
PIECES = (
    b"", b"\0", b"\xff\xfe", b'"', b"}", b"]", b"[" * 3000, b'{"a":' * 3000, b"9" * 5000, b"\n", b"../", b"\x1b[2J",
    b"!!python/object:os.system", b"&a [*a, *a]", b"1e999", b"NaN", b"1" + b"0" * 400,
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One kind of file."""

    place: str
    """Below the outputs root."""
    text: str
    read: Callable[[Path], object]
    """Takes the file."""
    count: int = 1000
    resign: Callable[[Any], Any] | None = None
    """Renews the digest that a mutated value holds of itself."""


def mutated(text: str, chance: random.Random, resign: Callable[[Any], Any] | None) -> bytes:
    """Another text: values replaced where it is JSON, or bytes cut, doubled or put in."""
    if text.startswith(("{", "[")) and chance.random() < 0.6:
        value = json.loads(text.splitlines()[0] if text.count("\n{") else text)
        for _ in range(chance.randint(1, 3)):
            value = _replaced(value, chance)
        return json.dumps(resign(value) if resign and isinstance(value, dict) else value).encode()
    data = text.encode()
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        stop = min(len(data), start + chance.choice((0, 1, 1, 5, 50, 10**9)))
        data = data[:start] + chance.choice(PIECES) + data[stop:]
    return data


def _replaced(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        if chance.random() < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if chance.random() < 0.1:
            return value | {chance.choice(("further", "../x", "")): chance.choice(NASTY)}
        return value | {key: _replaced(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], _replaced(value[at], chance), *value[at + 1 :]]
    return chance.choice(NASTY)


def spec_of(file: Path) -> object:
    """A sweep's and a resume's way to a spec."""
    return from_container(recorded_spec(file))


def trajectories(file: Path) -> object:
    """A schema that is not known is a ValueError there, below the wall."""
    try:
        return read_trajectories(file)
    except ValueError as error:
        raise XpError(str(error)) from None


def task_set(file: Path) -> object:
    """Listed and verified."""
    return list_sets(file.parents[1]), verify_set(file.parent)


def listed(outputs: Path) -> None:
    """Every evaluation in a list and in a table; one that cannot be read is named with its reason."""
    found = summaries(outputs)
    for one in found:
        line_of(one)
    markdown([one.summary for one in found if one.summary is not None])
    if any(one.fault for one in found):
        raise XpError("an evaluation is unreadable")


def kinds(outputs: Path) -> Mapping[str, Kind]:
    """Every file of a run or of the store that a command reads back."""
    run, begun, train = outputs / "runs/run", "runs/run/attempt_1", "runs/run/attempt_1/train"

    def whole_run(_: Path) -> None:
        table(read_record(run))
        show_all(outputs)
        leaderboard(outputs, ["run"])

    def judged(_: Path) -> None:
        diagnose(outputs, run, read_record(run))
        report([run])

    plan = (outputs / begun / "plan.json").read_text()
    told = build_plan(compose([]), "run").stages[0].job.files[f"{begun}/prepare/config.json"]
    return {
        "run.json": Kind("runs/run/run.json", record("run", status="succeeded"), whole_run, 1500),
        "spec.yaml": Kind("runs/run/spec.yaml", to_yaml(compose([])), spec_of, 400),
        "plan.json": Kind(f"{begun}/plan.json", plan, lambda _: detached.detachable(run, read_record(run)), 700),
        "evaluation.json": Kind(f"{begun}/evaluate/evaluation.json", evaluation(), lambda _: held_out(run)),
        "metrics.jsonl": Kind("runs/run/metrics.jsonl", METRICS, lambda file: read_metrics(file, "train")),
        "trajectories": Kind(f"{train}/trajectories.jsonl", TRAJECTORY, trajectories),
        "result.json": Kind(f"{train}/result.json", RESULT, lambda file: read_result(file.parent)),
        "submitted.json": Kind(f"{train}/submitted.json", submitted(), lambda file: read_launches(file.parent)),
        "job.json": Kind(f"{train}/job.json", order(), lambda file: config_of(file, JobSpec.from_json)),
        "prepare.json": Kind(f"{begun}/prepare.json", told, lambda file: config_of(file, PrepareConfig.from_json)),
        "manifest.json": Kind(f"tasks/{KEY}/manifest.json", manifest(), task_set, 1000, signed),
        "eval.json": Kind("evaluations/e/eval.json", json.dumps(SUMMARISED), lambda _: listed(outputs)),
        "metrics of a report": Kind("runs/run/metrics.jsonl", METRICS, judged, 40),
        "evaluation of a report": Kind(f"{begun}/evaluate/evaluation.json", evaluation(), judged, 40),
        "episodes of a report": Kind(f"{train}/trajectories/train.jsonl", json.dumps(EPISODE) + "\n", judged, 60),
        "lock": Kind("runs/run/.lock", "", lambda _: show_all(outputs), 100),
    }


METRICS = json.dumps({"step": 1, "time": 1.0, "stage": "train", "attempt": 1, "reward/avg_raw_reward": 0.5}) + "\n"
TRAJECTORY = json.dumps({"schema_version": 3, "run": "run", "phase": "train", "step": 1, "messages": []}) + "\n"
RESULT = json.dumps({"code": 0, "missing": [], "ended": "2026-01-01T00:00:00+00:00"})


def evaluation() -> str:
    """The result of an evaluation of both models."""
    mean: dict[str, Any] = {
        "reward_mean": 0.5,
        "reward_stderr": 0.1,
        "perfect_share": 0.2,
        "num_scored": 8,
        "num_void": 0,
    }
    mean |= {"pass_threshold": 1.0, "tasks": {"e/test/1": [0.5, None], "e/test/2": [0.1, 0.2]}}
    return json.dumps({"schema_version": 1, "models": {"after": "m"}, "results": {"before": mean, "after": mean}})


def submitted() -> str:
    """The list of jobs that a cluster took."""
    log = "runs/run/attempt_1/train/log.txt"
    return json.dumps([{"launcher": "slurm", "key": "run/1/train", "native_id": "7", "log": log, "started": ""}])


def order() -> str:
    """The order that a node reads."""
    context = Context("run", 1, Path("/outputs"), "runs/run/attempt_1")
    return make_job_spec(stage("train", "pass"), context, root="/outputs", grace_s=1.0, secrets_file=None).to_json()


def manifest() -> str:
    """Manifest of a task set."""
    request = {"format": 1, "members": {}}
    return Manifest(
        KEY, request, {"m": "1"}, "0" * 64, {"m": {"train": Count(1)}}, (), ("n",), {"tasks.parquet": "0" * 64}, {}
    ).to_json()


def signed(value: dict[str, Any]) -> dict[str, Any]:
    """The content with a matching digest, as an attacker would write it."""
    rest = {name: one for name, one in value.items() if name != "manifest_digest"}
    return rest | {"manifest_digest": digest_of(rest)}


def test_a_mutated_file_is_read_or_refused_and_nothing_beside_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, outputs = tmp_path / "home", tmp_path / "outputs"
    (home / ".xp/secrets/run").mkdir(parents=True)
    (home / ".xp/secrets/run/1.train.json").write_text("{}")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    calls = leave_programs(tmp_path / "bin")
    run = leave_run(outputs, "run", record("run", status="succeeded"))
    make_ours(run)
    (outputs / "evaluations/e").mkdir(parents=True)
    (outputs / "evaluations/e/request.json").write_text("{}")
    chance, total = random.Random(0), 0
    for name, kind in kinds(outputs).items():
        file = outputs / kind.place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(kind.text)
        before = contents(tmp_path)
        refused = 0
        if " of " in name:
            kind.read(file)
        for _ in range(kind.count):
            data = mutated(kind.text, chance, kind.resign)
            file.write_bytes(data)
            try:
                kind.read(file)
            except XpError:
                refused += 1
            except BaseException as error:
                raise AssertionError(f"{name}: {data[:400]!r}") from error
        file.write_text(kind.text)
        capsys.readouterr()
        assert contents(tmp_path) == before, name
        assert refused or name in ("plan.json", "mark", "metrics.jsonl", "trajectories", "lock") or " of " in name, name
        total += kind.count
    assert total >= 10_000
    assert not calls.exists()
