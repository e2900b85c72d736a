"""Fine-tuning with Slime's own code: one batch against the loss in float64, and its parser's reading of the flags."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import PLACES, leave_files, train_config
from tests.support.slime_rehearsal import spec_of
from tests.trainers.sft_batch import expected_loss, leave_talk, samples
from tests.trainers.slime_setup import needs_slime, parsed, tiny_directory
from xp.backends.slime.control.render import render, sft_stage
from xp.backends.slime.worker import sft
from xp.backends.slime.worker.config import (
    ORDER,
    SlimeCommand,
    SlimeSftConfig,
    SlimeTrainConfig,
    WorkerConfig,
)
from xp.backends.slime.worker.program import absolute_flags
from xp.episode.metrics_file import read_metrics
from xp.spec import RunSpec
from xp.worker.publish import check_there
from xp.worker.sft import HELD_OUT_FILE, TRAINING_FILE, write_examples
from xp.worker.slime_names import STEPS_FLAG

pytestmark = [needs_slime, pytest.mark.timeout(900)]


def spec_with_talk(root: Path, *more: str) -> RunSpec:
    return spec_of(
        tiny_directory(root), f"sft.data={leave_talk(root, 1)}", f"outputs={root}", *more
    )


def left(root: Path, spec: RunSpec) -> Path:
    """Puts the stage's files in place; returns the path of its config."""
    leave_files(root, sft_stage(spec, PLACES).job)
    return root / "runs/r/attempt_1/sft/config.json"


@pytest.mark.parametrize(
    ("num_ranks", "micro", "count"),
    [
        (1, "micro_batch_size=4", 8),
        (2, "micro_batch_size=2", 8),
        (2, "micro_batch_size=2", 5),
        (2, "max_tokens_per_micro_batch=24", 8),
    ],
)
def test_the_loss_of_a_batch_is_the_mean_over_the_tokens_of_the_mask(
    num_ranks: int, micro: str, count: int, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    words = ("sft.batch_size=8", "sft.epochs=1", "sft.warmup_updates=0", f"sft.{micro}")
    spec = spec_with_talk(tmp_path, *words, "sft.learning_rate=3e-3")
    path = left(tmp_path, spec)
    weights = tmp_path / "models/tiny/model.safetensors"
    save_file(
        {name: one.double() for name, one in load_file(weights).items()}, weights, {"format": "pt"}
    )
    config = SlimeSftConfig.from_json(path.read_text())
    batch = samples()[:count]
    write_examples(batch, path.parent / TRAINING_FILE)
    write_examples(samples()[:3], path.parent / HELD_OUT_FILE)
    sft.write_order(config, count, path.parent / ORDER)
    command = [sys.executable, "-m", "tests.trainers.slime_sft_batch", str(path), str(num_ranks)]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ["PYTHONPATH"]]),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    before, update = read_metrics(tmp_path / "runs/r/metrics.jsonl", "sft")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "models/tiny", dtype=torch.float64)
    held_out, _ = expected_loss(model, samples()[:3])
    model.zero_grad()
    loss, norm = expected_loss(model, batch)
    assert before["sft/held_out_loss"] == pytest.approx(held_out, rel=1e-6)
    assert update["training/loss"] == pytest.approx(loss, rel=1e-6)
    assert update["training/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert update["training/learning_rate"] == pytest.approx(3e-3)
    assert update["sft/held_out_loss"] < held_out
    assert before["step"] == 0
    assert update["step"] == 1


def test_the_program_gives_slime_each_episode_once_an_epoch_and_publishes_its_last_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slime's train.py needs GPUs: what it would leave is left in its place."""
    words = (
        "env.held_out=null",
        "sft.batch_size=4",
        "sft.micro_batch_size=1",
        "sft.epochs=2",
        "sft.warmup_updates=0",
    )
    spec = spec_of(
        tiny_directory(tmp_path),
        f"sft.data={leave_talk(tmp_path, 10)}",
        f"outputs={tmp_path}",
        *words,
    )
    path = left(tmp_path, spec)
    commands = []

    def train(command: SlimeCommand, worker: WorkerConfig) -> None:
        commands.append(command.flags[-2:])
        last = worker.num_steps - 1
        shutil.copytree(tmp_path / "models/tiny", tmp_path / str(worker.exports) / str(last))
        checkpoints = tmp_path / str(worker.checkpoints)
        for file in (
            f"iter_{last:07d}/metadata.json",
            f"rollout/global_dataset_state_dict_{last}.pt",
        ):
            (checkpoints / file).parent.mkdir(parents=True, exist_ok=True)
            (checkpoints / file).touch()
        (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(last))

    monkeypatch.setattr(sft, "run_train", train)
    monkeypatch.setattr("xp.worker.sft.check_trained", lambda *_: None)  # nothing is trained here
    monkeypatch.chdir(tmp_path)
    sft.main([str(path)])
    trained = [json.loads(line) for line in (path.parent / TRAINING_FILE).read_text().splitlines()]
    assert commands == [("--num-rollout", "6")]
    order = [
        json.loads(line)["metadata"]["example"]
        for line in (path.parent / "order.jsonl").read_text().splitlines()
    ]
    epochs = order[:12], order[12:]
    assert all(
        sorted(epoch[:10]) == list(range(10)) and epoch[10:] == [None] * 2 for epoch in epochs
    )
    assert epochs[0] != epochs[1]
    assert len(trained) == 10
    check_there(str(tmp_path / "runs/r/sft"))
    sft.main([str(path)])
    assert "continuing from update 6 of 6" in capsys.readouterr().out
    assert len(commands) == 1


@pytest.mark.parametrize(
    "more",
    [
        (),
        (
            "algorithm=opd",
            "algorithm.distill.teacher=org/teacher",
            "algorithm.distill.url=http://127.0.0.1:1/v1",
        ),
        (
            "algorithm=gspo",
            "training.kl_coef=0.1",
            "algorithm.dynamic_sampling=true",
            "training.temperature=0.7",
        ),
        (
            "backend.engine.placement=separate",
            "backend.engine.accelerators=1",
            "training.max_tokens_per_micro_batch=2000",
        ),
    ],
)
def test_slimes_parser_reads_a_fine_tuning_without_engines(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    from slime.utils.arguments import parse_args

    spec = spec_with_talk(
        tmp_path, "sft.batch_size=8", "sft.warmup_updates=3", "sft.learning_rate=2e-5", *more
    )
    config = SlimeSftConfig.from_json(left(tmp_path, spec).read_text())
    (tmp_path / config.stage_dir / ORDER).touch()
    args = parsed([*absolute_flags(config.command, tmp_path), STEPS_FLAG, "7"], parse_args)
    assert (args.loss_type, args.calculate_per_token_loss, args.debug_train_only) == (
        "sft_loss",
        True,
        True,
    )
    assert args.rollout_batch_size == 8
    assert args.global_batch_size == 8
    assert args.n_samples_per_prompt == 1
    assert args.num_rollout == 7
    assert args.rollout_temperature == 1.0
    assert args.eval_interval is None
    assert args.lr == 2e-5
    assert args.lr_warmup_iters == 2
    assert args.lr_decay_style == "cosine"
    assert (args.actor_num_nodes, args.actor_num_gpus_per_node, args.colocate) == (1, 2, False)
    assert (args.use_kl_loss, args.use_critic, args.use_tis, args.use_dynamic_batch_size) == (
        False,
    ) * 4
    assert (args.use_opd, args.normalize_advantages, args.dynamic_sampling_filter_path) == (
        False,
        False,
        None,
    )
    assert args.load == args.ref_load == args.hf_checkpoint == str(tmp_path / "models/tiny")
    assert args.save == str(tmp_path / "runs/r/sft_checkpoints")


def test_the_training_starts_from_the_fine_tuned_model(tmp_path: Path) -> None:
    from slime.utils.arguments import parse_args

    for reference, place in (("initial", "models/tiny"), ("sft", "runs/r/sft")):
        spec = spec_with_talk(tmp_path, "training.kl_coef=0.1", f"training.reference={reference}")
        stage, train, _ = render(spec, PLACES)
        assert stage.name == "sft"
        assert train.name == "train"
        assert train.needs == ("prepare", "sft")
        (tmp_path / "runs/r/sft").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs/r/sft/config.json").write_text(
            (tmp_path / "models/tiny/config.json").read_text()
        )
        config = train_config(SlimeTrainConfig, spec).from_the_start()
        for name in ("tasks", "held_out"):
            (tmp_path / f"runs/r/attempt_1/train/{name}.jsonl").parent.mkdir(
                parents=True, exist_ok=True
            )
            (tmp_path / f"runs/r/attempt_1/train/{name}.jsonl").touch()
        args = parsed(
            absolute_flags(config.with_steps(config.num_steps).command, tmp_path), parse_args
        )
        assert args.load == args.hf_checkpoint == str(tmp_path / "runs/r/sft")
        assert args.ref_load == str(tmp_path / place)
