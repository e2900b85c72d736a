"""The lock of a run: each part that a result depends on is named when it is another one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.support.fake_launcher import FakeLauncher
from tests.support.fake_provider import FakeWorld
from tests.support.sections import chat_model, distill, run_spec
from xp.__main__ import main
from xp.composition import compose
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.execution.launchers import files
from xp.execution.launchers.base import Context
from xp.execution.lock import LockInputs, differences, inputs_of, planned_facts, read_lock
from xp.planning.episode import user_modules
from xp.planning.job import Stage
from xp.tasks.prepare import prepare
from xp.worker.facts import FILE, record_facts
from xp.worker.places import RunPaths
from xp.worker.stage import StageConfig
from xp.worker.tiny_model import SHIPPED

ENVIRONMENT = '"""An environment."""\n\nclass Env:\n    pass\n'
GRADER = '"""A grader."""\nimport lock_points\n\ndef score(answer, row):\n    return 1.0\n'


@dataclass
class Place:
    """The inputs of a run: modules, a model and a task set, each of which a test may change."""

    root: Path
    monkeypatch: pytest.MonkeyPatch
    world: FakeWorld
    seed: int = 1
    rate: float = 0.001

    def facts(self, attempt: int) -> tuple[Mapping[str, str], LockInputs]:
        """The facts of an attempt that begins now, as its planning and its training process find them."""
        spec = compose(
            [
                "env=graded",
                "env.grader=lock_graders:score",
                "env.rows=lock_env:Env",
                f"seed={self.seed}",
                f"training.learning_rate={self.rate}",
                f"sft.data={self.root}/talk.jsonl",
            ]
        )
        inputs = inputs_of(spec.model_dump(mode="json"), files.locate_modules(user_modules(spec)))
        task_set = prepare(self.world.config(), {}, self.root / f"store_{attempt}")
        stage = self.root / f"run/attempt_{attempt}/train"
        stage.mkdir(parents=True)
        (stage / "prepare.json").write_text(self.world.config().to_json())
        from transformers import AutoTokenizer

        chat = ChatTokens(AutoTokenizer.from_pretrained(self.root / "model"), chat_model())
        teacher = distill(str(self.root / "teacher"))
        places = RunPaths(str(self.root / "run"), attempt, str(task_set.path))
        config = StageConfig(
            spec=run_spec(algorithm__distill=teacher), places=places, stage="train"
        )
        record_facts(config, self.root / "model", stage, chat)
        copy = stage.with_name("code")
        files.copy_modules(list(inputs.locations.values()), copy)
        copied = {name: copy / place.name for name, place in inputs.locations.items()}
        return {**planned_facts(inputs), **json.loads((stage / FILE).read_text())}, LockInputs(
            inputs.spec, copied
        )

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.root / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in ("model", "teacher"):
        shutil.copytree(SHIPPED, tmp_path / name)
    (tmp_path / "lock_env.py").write_text(ENVIRONMENT)
    (tmp_path / "lock_graders.py").write_text(GRADER)
    (tmp_path / "lock_points.py").write_text("POINTS = 1\n")
    (tmp_path / "talk.jsonl").write_text('{"messages": []}')
    shutil.copytree(files.PACKAGE / "lib", tmp_path / "xp/lib")
    (tmp_path / "xp/__init__.py").touch()
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "xp")
    monkeypatch.setattr("xp.execution.lock.PACKAGE", tmp_path / "xp")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("torch", "transformers"):
        pytest.importorskip(name, reason=f"{name} is not installed (extra trl)")
    monkeypatch.setattr(sys.modules["torch"], "__version__", "2.13.0")
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__="1.16.0"))
    return Place(tmp_path, monkeypatch, FakeWorld(tmp_path, splits={"train": 6, "test": 3}))


def turned_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def other_version(place: Place, package: str) -> None:
    place.monkeypatch.setattr(sys.modules[package], "__version__", "9.9")


TAMPERED: Sequence[tuple[Callable[[Place], object], str]] = (
    (
        lambda it: it.edit("model/chat_template.jinja", "user", "User"),
        "chat_template: ",
    ),
    (
        lambda it: it.edit("model/tokenizer.json", '"rstrip": false', '"rstrip": true'),
        "tokenizer: ",
    ),
    (lambda it: turned_bit(it.root / "model/model.safetensors"), "model.weights: "),
    (lambda it: turned_bit(it.root / "teacher/model.safetensors"), "teacher.weights: "),
    (
        lambda it: it.edit("model/config.json", '"rope_theta": ', '"rope_theta": 1'),
        "model.config: ",
    ),
    (lambda it: it.world.change(order={"0": 99}), "tasks.content: "),
    (lambda it: it.world.change(version="2"), "environments.fake: 1 -> 2"),
    (lambda it: other_version(it, "trl"), "versions.trl: 1.16.0 -> 9.9"),
    (lambda it: it.edit("lock_graders.py", "1.0", "2.0"), "code.lock_graders: lock_graders.py"),
    (lambda it: it.edit("lock_points.py", "1", "2"), "code.lock_points: lock_points.py"),
    (lambda it: it.edit("lock_env.py", "pass", "x = 1"), "code.lock_env: lock_env.py"),
    (lambda it: it.edit("talk.jsonl", "[]", "[ ]"), "sft.data: "),
    (lambda it: it.edit("xp/lib/text.py", "def ", "def a"), "code.xp: xp/lib/text.py"),
    (lambda it: setattr(it, "seed", 2), "seeds.seed: 1 -> 2"),
    (
        lambda it: setattr(it, "rate", 0.5),
        "spec: seed: 1 -> 2, training.learning_rate: 0.001 -> 0.5",
    ),
)
"""A change of an input, and the beginning of the line that names it."""


def test_what_is_another_one_is_named(place: Place) -> None:
    before = place.facts(1)
    assert differences(before, place.facts(2)) == [], "a run that is done again has the same lock"
    for change, _ in TAMPERED:
        change(place)
    with pytest.raises(
        XpError, match="the run cannot continue with another model or other tasks: "
    ):
        place.facts(3)
    for part in ("attempt_1/train", "attempt_2", "attempt_3"):
        shutil.rmtree(place.root / "run" / part)
    lines = differences(before, place.facts(3))
    assert [
        begin for _, begin in TAMPERED if not any(line.startswith(begin) for line in lines)
    ] == []
    known = tuple(begin for _, begin in TAMPERED)
    assert [line for line in lines if not line.startswith(known)] == []


Say = Callable[..., int]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Says words to `xp` with a launcher whose stages write what they promise, and whose training never succeeds."""
    (tmp_path / "lock_graders.py").write_text(GRADER)
    (tmp_path / "lock_points.py").write_text("POINTS = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def played(made: Stage, context: Context) -> int:
        for name in made.promised:
            (context.outputs / name).parent.mkdir(parents=True, exist_ok=True)
            (context.outputs / name).write_text("{}")
        if made.name == "train":
            stage = context.outputs / context.directory / "train"
            stage.mkdir(parents=True)
            facts = {"versions.torch": f"2.{context.attempt}", "tasks.content": "0" * 64}
            (stage / FILE).write_text(json.dumps(facts))
        return 9 if made.name == "train" else 0

    def told(*words: str) -> int:
        monkeypatch.setattr(
            "xp.execution.launchers.base.make_launcher", lambda *_: FakeLauncher(played)
        )
        return main([*words, f"outputs={tmp_path / 'outputs'}"])

    return told


BEGIN = ("env=multiply", "env.reward_fn=lock_graders:score")


def test_a_run_has_its_lock_and_a_resume_names_changed_code(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(*BEGIN) == ExitCode.STAGE_FAILED
    (run,) = (tmp_path / "outputs/runs").iterdir()
    facts = {"spec", "seeds.seed", "code.xp", "code.lock_graders", "versions.torch"}
    assert facts <= read_lock(run).facts.keys()
    assert say(f"resume={run.name}") == ExitCode.STAGE_FAILED
    assert read_lock(run).facts["versions.torch"] == "2.2", "those of the lock's attempt"
    (tmp_path / "lock_graders.py").write_text(GRADER.replace("1.0", "2.0"))
    capsys.readouterr()
    assert say(f"resume={run.name}") == ExitCode.CONFIG
    refusal = capsys.readouterr().err
    assert "may differ: code.lock_graders: lock_graders.py" in refusal
    assert "--accept code.lock_graders" in refusal
    assert say("runs", "trust", run.name, "--accept", "code.xp.x") == ExitCode.CONFIG
    assert say("runs", "trust", run.name, "--accept", "code.lock_graders") == 0
    assert say("runs", "show", run.name, "--lock") == 0
    assert "(a change is accepted)" in capsys.readouterr().out
    assert say(f"resume={run.name}") == ExitCode.STAGE_FAILED
    assert (read_lock(run).attempt, read_lock(run).accepted) == (3, ())


def test_a_run_records_its_command_line_and_the_changes_by_later_attempts(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say("-m", "seed=3,4", *BEGIN, "--config-dir", str(tmp_path)) == ExitCode.STAGE_FAILED
    (run,) = (
        file.parent
        for file in (tmp_path / "outputs/runs").glob("*/spec.yaml")
        if "\nseed: 4\n" in file.read_text()
    )
    assert say(f"resume={run.name}", "training.num_steps=9") == ExitCode.STAGE_FAILED
    capsys.readouterr()
    assert say("runs", "recipe", run.name) == 0
    begin = f"python -m xp run seed=4 {' '.join(BEGIN)} outputs={tmp_path / 'outputs'} --config-dir {tmp_path}"
    assert capsys.readouterr().out == f"{begin} training.num_steps=9\n"


def test_a_spec_that_was_edited_is_not_resumed(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(*BEGIN) == ExitCode.STAGE_FAILED
    (run,) = (tmp_path / "outputs/runs").iterdir()
    spec = yaml.safe_load((run / "spec.yaml").read_text())
    spec["training"] |= {"num_steps": 99, "learning_rate": 0.5}
    (run / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert say(f"resume={run.name}") == ExitCode.CONFIG
    refusal = capsys.readouterr().err
    assert "training.learning_rate: a resumed run keeps it" in refusal
    assert "training.num_steps:" not in refusal
