"""Fine-tuning with the real SFTTrainer: one batch against the loss in float64, and the stage's program on a file."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import few
from tests.support.jobs import leave_files
from tests.support.tiny import leave_model, leave_untrained, tokenizer_and_model
from tests.trainers.sft_batch import expected_loss, leave_talk, samples
from xp.backends.trl.control.render import sft_stage
from xp.backends.trl.worker import sft
from xp.backends.trl.worker.config import TRLSftConfig
from xp.backends.trl.worker.process import Ranks
from xp.composition import ROOT, compose
from xp.episode.metrics_file import read_metrics
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.planning.stages import task_set_place
from xp.worker.places import RunPaths, model_place
from xp.worker.sft import SftProgram, Updates

pytestmark = pytest.mark.timeout(900)
PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")


def outputs_with_model(root: Path, *overrides: str) -> TRLSftConfig:
    """An outputs root with an untrained model and the stage's files; its working directory is the root."""
    env = () if any(word.startswith("env=") for word in overrides) else ("env=multiply",)
    spec = compose(
        [*env, "env.held_out=null", f"outputs={root}", "sft.micro_batch_size=4", *overrides]
    )
    places = replace(PLACES, tasks=task_set_place(spec))
    leave_model(root / model_place(spec.model))
    leave_files(root, sft_stage(spec, places).job)
    return TRLSftConfig.from_json((root / "runs/r/attempt_1/sft/config.json").read_text())


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The outputs root, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("micro", few([2, 4, 1, 8], 1))
def test_losses_of_training_and_held_out_episodes_are_means_over_the_tokens_of_the_mask(
    micro: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    words = ("sft.batch_size=8", "sft.num_updates=1", "sft.warmup_updates=0")
    file = leave_talk(root, 1)
    config = outputs_with_model(root, *words, f"sft.data={file}", f"sft.micro_batch_size={micro}")
    tokenizer, _ = tokenizer_and_model()
    monkeypatch.setattr("xp.backends.trl.worker.lora.loaded_dtype", lambda _: torch.float64)
    program = SftProgram(config, root, ChatTokens(tokenizer), samples(), samples())
    trainer = sft.make_trainer(program, Ranks(), Updates(None, 9, 1.0))
    loss, norm = expected_loss(
        AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float64), samples()
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)
    trainer.train()
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    assert line["loss"] == pytest.approx(loss, rel=1e-6)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert line["learning_rate"] == pytest.approx(3e-3)


def test_the_users_own_keys_reach_trls_configuration(root: Path) -> None:
    words = (
        f"sft.data={leave_talk(root, 1)}",
        "sft.num_updates=1",
        "sft.overrides.label_smoothing_factor=0.1",
    )
    config = outputs_with_model(root, *words)
    chat = ChatTokens(tokenizer_and_model()[0])
    program = SftProgram(config, root, chat, samples(), [])
    args = sft.make_trainer(program, Ranks(), Updates(None, 9, 1.0)).args
    assert args.label_smoothing_factor == 0.1
    assert args.router_aux_loss_coef == 0.0


@pytest.mark.slow
def test_the_program_learns_a_file_and_goes_on_after_its_last_checkpoint(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    file = leave_talk(root, 30)
    words = (
        f"sft.data={file}",
        "sft.batch_size=4",
        "sft.checkpoint_every=2",
        "sft.held_out_fraction=0.3",
    )
    config = outputs_with_model(root, *words, "sft.num_updates=4")
    here = root / "runs/r/attempt_1/sft/config.json"
    sft.main([str(here)])
    lines = read_metrics(root / "runs/r/metrics.jsonl", "sft")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    last = lines[-1]["sft/held_out_loss"]
    assert all(line["training/loss"] > 0 for line in lines[1:])
    assert last < lines[0]["sft/held_out_loss"] - 1
    before, after = (
        load_file(root / place / "model.safetensors") for place in (config.model, config.target)
    )
    assert before.keys() == after.keys()
    assert not all(before[name].equal(after[name]) for name in before)
    # The rest of a longer fine-tuning, from the checkpoint of update 4.
    outputs_with_model(root, *words, "sft.num_updates=6")
    capsys.readouterr()
    sft.main([str(here)])
    assert "continuing from runs/r/sft_checkpoints/checkpoint-4" in capsys.readouterr().out
    lines = read_metrics(root / "runs/r/metrics.jsonl", "sft")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert lines[-1]["sft/held_out_loss"] < last


def test_updates_that_change_no_weight_are_no_success(root: Path) -> None:
    words = (
        f"sft.data={leave_talk(root, 4)}",
        "sft.batch_size=4",
        "sft.num_updates=1",
        "sft.warmup_updates=0",
    )
    outputs_with_model(root, *words, "sft.learning_rate=1e-60")
    with pytest.raises(XpError, match="all weights of runs/r/sft are still those of") as raised:
        sft.main([str(root / "runs/r/attempt_1/sft/config.json")])
    assert raised.value.code == ExitCode.NOT_TRAINED


def test_nothing_to_learn_from_ends_the_stage(root: Path) -> None:
    file = leave_talk(root, 3)
    outputs_with_model(
        root, f"sft.data={file}", "sft.batch_size=4", "training.max_prompt_tokens=20"
    )
    with pytest.raises(
        XpError, match=r"no episode is left.*3 longer than the token budget"
    ) as raised:
        sft.main([str(root / "runs/r/attempt_1/sft/config.json")])
    assert raised.value.code == ExitCode.TASKS


class Down:
    """A grader that fails, with a script."""

    def rows(self) -> dict[str, list[dict[str, str]]]:
        return {
            "train": [{"prompt": f"Say {number}.", "answer": str(number)} for number in range(8)]
        }

    def grade(self, answer: str, row: dict[str, str]) -> float:
        raise RuntimeError(f"it is down, {answer} {row}")

    @staticmethod
    def solve(messages: list[Any], task: dict[str, str]) -> str:
        del messages
        return task["answer"]


def test_a_script_whose_episodes_are_void_ends_the_stage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "env=graded",
        f"env.grader={__name__}:Down",
        "sft.data=solve",
        "sft.num_episodes=null",
        "sft.batch_size=4",
    )
    leave_untrained(root, *words, "env.held_out=null", f"outputs={root}")
    monkeypatch.syspath_prepend(str(ROOT))
    config = outputs_with_model(root, *words)
    with pytest.raises(XpError, match="8 of the script's 8 episodes are void") as raised:
        sft.main([f"{config.stage_dir}/config.json"])
    assert raised.value.code == ExitCode.UNHEALTHY


@pytest.mark.slow
def test_two_processes_learn_and_publish_one_model(tmp_path: Path) -> None:
    words = (
        *(
            "env=whodunit_mini",
            "env.train.num_tasks=32",
            "env.held_out.num_tasks=8",
            "hardware.accelerators_per_node=2",
        ),
        *(
            "training.micro_batch_size=32",
            "sft.data=solve",
            "sft.num_episodes=24",
            "sft.held_out_fraction=0.3",
        ),
        *("sft.batch_size=8", "sft.micro_batch_size=4", "sft.num_updates=6"),
    )
    command = [sys.executable, "-m", "xp", "sft", *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (tmp_path / "outputs/runs").iterdir()
    lines = read_metrics(run / "metrics.jsonl", "sft")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert lines[-1]["sft/held_out_loss"] < lines[0]["sft/held_out_loss"]
    assert (run / "sft/model.safetensors").is_file()
