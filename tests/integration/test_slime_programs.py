"""The parts of Slime's stage programs that need nothing of Slime: command lines, models, steps."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import xp
from tests.unit.slime_config import worker_config
from xp.backends.slime.worker import engine_key, processes
from xp.backends.slime.worker.config import ConvertConfig, SlimeCommand, WorkerConfig
from xp.backends.slime.worker.convert import main as convert
from xp.backends.slime.worker.models import check_architecture, publish_model
from xp.backends.slime.worker.processes import ask_to_close, close_on_request
from xp.backends.slime.worker.program import run_file
from xp.backends.slime.worker.steps import half_of
from xp.backends.slime.worker.training import CapturedLog
from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_json
from xp.lib.verified import damaged, digests_below
from xp.spec import Estimator
from xp.spec.training import OnNonfinite

pytestmark = pytest.mark.timeout(1500)


def command(*flags: str, paths: tuple[str, ...] = (), models: tuple[str, ...] = ()) -> SlimeCommand:
    return SlimeCommand(flags, paths, models, {}, "XP_TEST_SLIME")


def model_at(directory: Path, **config: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_an_architecture_that_is_not_the_models_is_refused_with_both_values(tmp_path: Path) -> None:
    model = model_at(
        tmp_path / "m",
        hidden_size=96,
        num_hidden_layers=2,
        rope_parameters={"rope_theta": 10000.0, "recurrent_layers": False},
    )
    check_architecture(
        model,
        {"hidden_size": 96, "num_layers": 2, "rope_theta": 10000.0, "recurrent_layers": False},
    )
    with pytest.raises(XpError, match=r"num_layers is 3, and config\.json has 2"):
        check_architecture(
            model,
            {"hidden_size": 96, "num_layers": 3, "rope_theta": 10000.0, "recurrent_layers": False},
        )


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore everything that opening checkouts changes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    for name in ("XP_TEST_SLIME", "MEGATRON_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def checkouts(tmp_path: Path, untouched: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    del untouched
    for variable, mark in (
        ("XP_TEST_SLIME", "slime/tools"),
        ("MEGATRON_PATH", "megatron-lm/megatron/training"),
    ):
        (tmp_path / mark).mkdir(parents=True)
        monkeypatch.setenv(variable, str(tmp_path / mark.partition("/")[0]))
    (tmp_path / "slime/train.py").touch()
    # As in a stage, whose children find xp.
    monkeypatch.setenv("PYTHONPATH", str(Path(xp.__file__).parents[1]))
    return tmp_path / "slime"


@pytest.mark.parametrize(
    ("library", "made", "code", "said"),
    [
        (
            "ray",
            lambda _: XpError("too many are void", ExitCode.UNHEALTHY),
            ExitCode.UNHEALTHY,
            "^too many are void$",
        ),
        (
            "requests",
            lambda requests: requests.ConnectionError("refused by 127.0.0.1:15000"),
            ExitCode.ENGINE,
            "an engine did not answer: refused by 127.0.0.1:15000",
        ),
        (
            "ray",
            lambda ray: ray.exceptions.WorkerCrashedError(),
            ExitCode.ENGINE,
            "a process of Slime's has ended",
        ),
    ],
)
def test_a_fault_in_one_of_rays_processes_has_its_code(
    library: str, made: Callable[[Any], BaseException], code: ExitCode, said: str, tmp_path: Path
) -> None:
    """Two of Ray's actors pass it on."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    error = made(pytest.importorskip(library))
    for _ in range(2):
        sent = ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
        error = ray.exceptions.RayTaskError(
            "update_weights", "traceback", sent
        ).as_instanceof_cause()
    (tmp_path / "train.py").write_text("import sys; raise sys.modules['xp_test_error'].error")
    sys.modules["xp_test_error"] = SimpleNamespace(error=error)  # type: ignore[assignment]
    try:
        with pytest.raises(XpError, match=said) as caught:
            run_file(tmp_path / "train.py", [])
    finally:
        del sys.modules["xp_test_error"]
    assert caught.value.code is code


def test_every_request_to_an_engine_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = pytest.importorskip("requests")
    engine = ModuleType(engine_key.ENGINE)
    engine.requests = requests  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, engine_key.ENGINE, engine)
    monkeypatch.setitem(processes.DEADLINES_S, "post", 0.2)  # type: ignore[arg-type]
    own = requests.post
    processes.set_deadlines()
    assert requests.post is own
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(requests.Timeout):
        engine.requests.post(
            f"http://127.0.0.1:{silent.getsockname()[1]}/pause_generation", json={}
        )


def test_a_published_model_is_whole_and_an_earlier_one_is_kept(tmp_path: Path) -> None:
    export = model_at(tmp_path / "exports/9", model_type="qwen3")
    (export / "model-00001.safetensors").write_text("weights")
    publish_model(export, tmp_path / "model", [2])
    publish_model(export, tmp_path / "model", [2])
    assert (tmp_path / "model/model-00001.safetensors").read_text() == "weights"
    assert (tmp_path / "model.attempt-1/config.json").is_file()
    publish_model(export, tmp_path / "model", [2])
    shutil.rmtree(tmp_path / "model.attempt-1")  # the user needed its space
    publish_model(export, tmp_path / "model", [2])
    assert sorted(one.name for one in tmp_path.glob("model*")) == [
        "model",
        "model.attempt-1",
        "model.attempt-2",
    ]
    with pytest.raises(XpError, match="without its last export") as caught:
        publish_model(tmp_path / "exports/19", tmp_path / "model", [2])
    assert caught.value.code is ExitCode.MISSING_OUTPUT


def logged(
    config: WorkerConfig, *steps: dict[str, float], watched: CapturedLog | None = None
) -> None:
    """Slime's log of these updates, in one process."""
    watched = watched or CapturedLog(lambda *_: None, config)
    for values in steps:
        watched(None, values, "train/step")


def leave_half(config: WorkerConfig, rollout_id: int) -> None:
    """The rollout's half of a step's line."""
    half = half_of(config, rollout_id)
    half.parent.mkdir(parents=True)
    half.write_text(json.dumps({"began": 0.0, "metrics": {"reward/avg_raw_reward": 0.5}}))


def lines(root: Path) -> list[dict[str, Any]]:
    return read_metrics(root / "runs/r/metrics.jsonl", "train")


def test_both_halves_of_a_step_become_one_line_after_its_last_update(tmp_path: Path) -> None:
    config = worker_config(tmp_path, updates_per_step=2)
    assert WorkerConfig.from_json(config.to_json()) == config
    leave_half(config, 3)
    native: list[str] = []
    watched = CapturedLog(lambda *arguments: native.append(arguments[2]), config)
    watched(None, {"rollout/step": 3, "rollout/x": 1.0}, "rollout/step")
    logged(config, {"train/step": 6, "train/loss": 1.0, "train/lr-pg_0": 1e-5}, watched=watched)
    assert not (tmp_path / "runs/r/metrics.jsonl").exists()
    logged(config, {"train/step": 7, "train/loss": 3.0, "train/grad_norm": 0.5}, watched=watched)
    (line,) = lines(tmp_path)
    assert line["step"] == 4
    assert line["reward/avg_raw_reward"] == 0.5
    assert line["training/loss"] == 2.0
    assert line["training/learning_rate"] == 1e-5
    assert line["training/grad_norm"] == 0.5
    assert line["time/step_s"] > 0
    assert native == ["rollout/step", "train/step", "train/step"]


def test_a_gap_stops_slime_only_at_a_steps_first_update(tmp_path: Path) -> None:
    config = worker_config(tmp_path, updates_per_step=2)
    leave_half(config, 3)
    # The second one's is made after an update, so that it says nothing of the engine.
    gaps = {6: 0.01, 7: 0.5, 8: 0.5}
    with pytest.raises(XpError, match="rollout step 5: the engine's log-probabilities") as caught:
        logged(
            config,
            *(
                {
                    "train/step": number,
                    "train/loss": 1.0,
                    "train/train_rollout_logprob_abs_diff": gap,
                }
                for number, gap in gaps.items()
            ),
        )
    assert caught.value.code is ExitCode.DIVERGED


def test_an_update_that_slime_left_out_is_counted_and_in_no_mean(tmp_path: Path) -> None:
    config = worker_config(tmp_path, updates_per_step=2, training__on_nonfinite=OnNonfinite.SKIP)
    leave_half(config, 3)
    left_out = {"train/step": 6, "train/loss": math.nan, "train/grad_norm": math.nan}
    logged(config, left_out, {"train/step": 7, "train/loss": 3.0, "train/grad_norm": 0.5})
    (line,) = lines(tmp_path)
    assert line["training/loss"] == 3.0
    assert line["training/updates"] == 1.0


def test_a_critics_numbers_stand_in_the_policys_line(tmp_path: Path) -> None:
    config = worker_config(tmp_path, updates_per_step=2, algorithm__estimator=Estimator.GAE)
    leave_half(config, 0)
    # Slime trains the critic first, in processes of its own.
    losses = enumerate((1.0, 2.0))
    logged(
        config,
        *(
            {"train/step": at, "train/critic-value_loss": loss, "train/critic-lr-pg_0": 1e-5}
            for at, loss in losses
        ),
    )
    assert not (tmp_path / "runs/r/metrics.jsonl").exists()
    logged(
        config, *({"train/step": step, "train/loss": 3.0, "train/lr-pg_0": 1e-6} for step in (0, 1))
    )
    (line,) = lines(tmp_path)
    assert line["training/value_loss"] == 1.5
    assert line["training/critic_learning_rate"] == 1e-5
    assert line["training/loss"] == 3.0
    assert line["training/learning_rate"] == 1e-6


CONVERTER = """
import sys
from pathlib import Path
save = Path(sys.argv[sys.argv.index("--save") + 1])
(save / "release").mkdir()
(save / "release/weights").write_text(" ".join(sys.argv[1:]))
(save / "latest_checkpointed_iteration.txt").write_text("release")
"""


def convert_job(root: Path, checkouts: Path) -> Path:
    model_at(root / "models/tiny", hidden_size=96)
    (checkouts / "tools/convert_hf_to_torch_dist.py").write_text(CONVERTER)
    flags = ("--hf-checkpoint", "models/tiny", "--save", "models/tiny-megatron")
    made = command(*flags, paths=("--save",), models=("--hf-checkpoint",))
    shape = {"hidden_size": 96, "recurrent_layers": False}
    manifest = {"of": "tiny", "model": "models/tiny", "architecture": shape}
    config = ConvertConfig(made, 1, "models/tiny-megatron", manifest)
    (root / "config.json").write_text(config.to_json())
    assert ConvertConfig.from_json(config.to_json()) == config
    return root / "config.json"


def test_a_converted_checkpoint_that_was_damaged_is_seen_and_made_again(
    tmp_path: Path, checkouts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    path = convert_job(tmp_path, checkouts)
    manifest = tmp_path / "models/tiny-megatron/manifest.json"
    weights = manifest.with_name("release") / "weights"
    weights.parent.mkdir(parents=True)
    weights.write_text("whole")
    write_json(manifest, {"files": digests_below(manifest.parent)})
    assert damaged(manifest) is None
    weights.write_text("bytes")
    assert damaged(manifest) == "release/weights does not match its sha256"
    convert([str(path)])
    assert damaged(manifest) is None
    made = weights.stat().st_ino
    convert([str(path)])
    assert weights.stat().st_ino == made, "a whole checkpoint of another run is kept"
    weights.unlink()
    assert damaged(manifest) == "'release/weights' is missing"


def test_a_process_of_rays_closes_its_sessions_before_it_is_ended(tmp_path: Path) -> None:
    closed: list[bool] = []
    ask_to_close(tmp_path)  # nothing was opened
    assert not [*tmp_path.iterdir()]
    (tmp_path / "closed").touch()  # of an earlier try
    close_on_request(tmp_path, lambda: closed.append(True))
    ask_to_close(tmp_path)
    assert closed == [True]
