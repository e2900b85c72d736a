"""What xp relies on in the pinned TRL, against the real package, and the adapter's small parts."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.episode_facts import logged
from tests.support.forked import run_forked
from tests.support.jobs import PLACES, train_config
from tests.support.recipes import recipes_of
from tests.support.tiny import tokenizer_and_model
from tests.support.trl_groups import Groups, step_log
from tests.trainers.trl_args import each
from xp.backends.trl.control.render import grpo_config
from xp.backends.trl.worker.checkpoints import EndInTime, Seal, latest_checkpoint
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import Ranks
from xp.backends.trl.worker.train import _train, settled_reward
from xp.composition import compose
from xp.episode.metrics_file import MetricsFile, read_metrics
from xp.errors import ExitCode, XpError
from xp.fields.trl import world_size
from xp.lib.verified import DIGESTS, write_digests

pytestmark = pytest.mark.timeout(1500)

RECIPES = recipes_of("trl")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Recipe -> the fields of its GRPOConfig."""
    place = tmp_path_factory.mktemp("args")
    from trl import GRPOConfig

    assert GRPOConfig, "imported before the fork, for all tests of this file"
    run_forked(lambda: each(place, RECIPES), place / "log.txt")
    return {recipe: json.loads((place / f"{recipe}.json").read_text()) for recipe in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES)
def test_trl_takes_every_recipe_and_counts_as_the_spec_meant(
    recipe: str, arguments: dict[str, dict[str, Any]]
) -> None:
    args = arguments[recipe]
    spec = compose([f"recipes={recipe}"])
    updates = (
        args["num_iterations"] * args["steps_per_generation"] / args["gradient_accumulation_steps"]
    )
    assert updates == spec.training.all_updates_per_step
    assert args["world_size"] == world_size(spec)
    assert args["mixed_precision"] == ("bf16" if spec.model.dtype == "bfloat16" else "no")
    # GRPOConfig must not have changed what was rendered.
    rendered = grpo_config(spec, PLACES)
    left_alone = set(rendered) - {
        "output_dir",
        "use_cpu",
        "report_to",
        "lr_scheduler_type",
        "fp16",
        "seed",
    }
    left_alone -= {"max_steps"} if spec.training.num_steps is None else set()
    changed = {
        name
        for name in left_alone
        if args[name] != rendered[name] and str(args[name]) != str(rendered[name])
    }
    assert changed <= {"save_strategy", "logging_strategy", "eval_strategy"}


def test_the_catalogs_are_the_installed_classes() -> None:
    from tools.catalogs.trl import CATALOGS, fields

    assert [json.loads(file.read_text()) for file in CATALOGS.values()] == [
        fields(name) for name in CATALOGS
    ]


SMALL = ("training.prompts_per_step=2", "training.group_size=4", "training.micro_batch_size=8")


def made(path: Path, config: dict[str, Any], callbacks: Sequence[Any] = ()) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer, model = deepcopy(tokenizer_and_model())
    return GRPOTrainer(
        model=model,
        args=GRPOConfig(**config | {"output_dir": str(path)}),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 2),
        rollout_func=Groups([1.0, None, 0.0, 0.5, 0.2, 0.2, 0.2, 0.2]),
        reward_funcs=settled_reward,
        callbacks=[*callbacks],
    )


def test_a_training_ends_in_time_with_a_sealed_checkpoint(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    words = ("training.num_steps=4", "training.checkpoint_every=2", "training.max_hours=0.5")
    config = train_config(TRLTrainConfig, compose([*SMALL, *words]))
    config = replace(config, places=replace(config.places, run=str(tmp_path)))
    MetricsFile(metrics, "train", 1).write(2, {"time/step_s": 900.0})
    callbacks = (Seal(Ranks(), [2]), EndInTime(config, Ranks()))
    with pytest.raises(XpError, match="ends after step 2") as caught:
        made(tmp_path, dict(config.grpo), callbacks).train()
    assert caught.value.code is ExitCode.LIMIT
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-2"
    with pytest.raises(XpError, match="ends after step 2"):
        made(tmp_path, dict(config.grpo), callbacks).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


def test_a_tied_weight_is_not_reported_as_missing_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import trainer as module

    from xp.backends.trl.worker.guard import GuardedTrainer

    trainer = made(tmp_path, grpo_config(compose(SMALL), PLACES))
    trainer.save_model(str(tmp_path))
    warnings: list[str] = []
    monkeypatch.setattr(module.logger, "warning", warnings.append)
    trainer._load_from_checkpoint(str(tmp_path))
    assert "lm_head.weight" in warnings.pop()  # transformers' own
    trainer.__class__ = GuardedTrainer
    trainer._load_from_checkpoint(str(tmp_path))
    assert warnings == []


@pytest.mark.parametrize(("updates", "step"), [(1, 4), (2, 2)])
def test_a_resume_without_a_step_to_do_has_its_metrics(
    tmp_path: Path, updates: int, step: int
) -> None:
    checkpoint = tmp_path / "checkpoints/checkpoint-4"
    checkpoint.mkdir(parents=True)
    write_digests(checkpoint)
    log = step_log(tmp_path, f"training.updates_per_step={updates}")
    resumed: list[str] = []
    resumed_rollouts: list[Path] = []
    trainer = SimpleNamespace(
        train=lambda resume_from_checkpoint: resumed.append(resume_from_checkpoint)
    )
    rollouts: Any = SimpleNamespace(resume=resumed_rollouts.append, close=lambda: None)
    _train(trainer, checkpoint.parent, log, rollouts, Ranks())
    assert resumed == [str(checkpoint)]
    assert resumed_rollouts == [checkpoint]
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl", "train")] == [step]


def test_a_step_with_too_many_void_episodes_has_its_code(tmp_path: Path) -> None:
    log = step_log(tmp_path, "training.max_void_fraction=0.25")
    log.episodes([logged(1.0), logged(1.0), logged(1.0), logged(None)], 1.0)
    with pytest.raises(XpError, match="2 of 4 episodes are void") as caught:
        log.episodes([logged(1.0), logged(1.0), logged(None), logged(None)], 1.0)
    assert caught.value.code is ExitCode.UNHEALTHY
    assert "down" in str(caught.value)


def test_several_updates_of_a_step_make_one_line(tmp_path: Path) -> None:
    log = step_log(tmp_path, "training.updates_per_step=2", "training.micro_batch_size=32")
    log.episodes([logged(1.0), logged(0.0)], 1.0)
    log.update(1, {"loss": 1.0})
    assert not (tmp_path / "metrics.jsonl").exists()
    log.update(2, {"loss": 3.0, "grad_norm": 0.5})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert '"step": 1' in line
    assert '"training/loss": 2.0' in line


def test_tokens_are_all_that_were_read_or_written_since_the_run_began(tmp_path: Path) -> None:
    """TRL's own count leaves out what the environment answered."""
    for first in (1, 3):  # the second attempt goes on after step 2
        log = step_log(tmp_path)
        for step in (first, first + 1):
            log.episodes([logged(1.0), logged(0.0)], 1.0)
            log.update(step, {"loss": 1.0, "num_tokens": 3})
    lines = read_metrics(tmp_path / "metrics.jsonl", "train")
    assert [line["training/tokens"] for line in lines] == [14, 28, 42, 56]


def test_the_bar_of_steps_leaves_out_the_start_and_evaluations(tmp_path: Path) -> None:
    log = step_log(tmp_path)
    log.begin_step()
    assert log._bar.format_dict["elapsed"] < 50
    log._bar.start_t -= 100
    log._bar.last_print_t -= 100
    assert log._bar.format_dict["elapsed"] > 100
    log.begin_step()
    assert log._bar.format_dict["elapsed"] < 50


def checkpoint(root: Path, step: int) -> Path:
    folder = root / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "trainer_state.json").write_text("{}")
    write_digests(folder)
    return folder


@pytest.mark.parametrize("damage", ["never sealed", "cut", "changed", "missing", "seal cut"])
def test_a_damaged_checkpoint_is_passed_over_and_named(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert latest_checkpoint(tmp_path) is None
    whole = checkpoint(tmp_path, 5)
    torn = checkpoint(tmp_path, 10)
    assert latest_checkpoint(tmp_path) == torn
    weights = torn / "model.safetensors"
    {
        "never sealed": lambda: (torn / DIGESTS).unlink(),
        "cut": lambda: weights.write_bytes(bytes(500)),
        "changed": lambda: weights.write_bytes(bytes(999) + b"x"),
        "missing": lambda: weights.unlink(),
        "seal cut": lambda: (torn / DIGESTS).write_text('{"model'),
    }[damage]()
    assert latest_checkpoint(tmp_path) == whole
    assert "checkpoint-10 is skipped" in capsys.readouterr().err


NOT_OURS = (
    "checkpoint-3.bad",
    "checkpoint-03",
    "checkpoint-",
    "checkpoint-x",
    "checkpoint-old-2",
    "my-checkpoint-9",
)


def checkpoints_and_others(place: Path) -> None:
    for name in ("checkpoint-1", "checkpoint-2", *NOT_OURS):
        (place / name).mkdir(parents=True)
        (place / name / "model").write_text(name)
        write_digests(place / name)
    (place / "checkpoint-7").write_text("a file")


def test_old_checkpoints_are_removed_and_directories_of_other_names_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.trainer_utils import rotate_checkpoints
    from trl import GRPOTrainer

    from xp.backends.trl.worker.guard import GuardedTrainer

    def native(self: Any, model: Any, trial: Any) -> None:
        del model, trial
        (tmp_path / "checkpoint-4").mkdir()
        (tmp_path / "checkpoint-4" / "model").write_text("new")
        rotate_checkpoints(self.args.output_dir, self.args.save_total_limit, use_mtime=True)

    checkpoints_and_others(tmp_path)
    monkeypatch.setattr(GRPOTrainer, "_save_checkpoint", native)
    trainer = object.__new__(GuardedTrainer)
    trainer.args = SimpleNamespace(
        output_dir=str(tmp_path), save_total_limit=2, should_save=True, sync_ref_model=False
    )
    trainer._save_checkpoint(None, None)
    assert (tmp_path / "checkpoint-1").is_dir(), (
        "an old one goes when the new one is sealed, and not before"
    )
    ranks: Any = SimpleNamespace(wait=lambda: None, is_main=True)
    Seal(ranks, [2]).on_save(trainer.args, SimpleNamespace(global_step=4), None)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint-2",
        "checkpoint-4",
        "checkpoint-7",
        *NOT_OURS,
    }
    assert trainer.args.save_total_limit == 2


def test_nothing_of_a_checkpoint_is_unpickled_but_tensors(tmp_path: Path) -> None:
    """What TRL's Trainer loads, it loads by weights_only or from safetensors."""
    import inspect

    import torch
    import transformers.trainer

    calls = re.findall(
        r"torch\.load\((?:[^()]|\([^()]*\))*\)", inspect.getsource(transformers.trainer)
    )
    assert calls
    assert all("weights_only=True" in call for call in calls)
    file = tmp_path / "optimizer.pt"
    torch.save({"hook": Path("x").touch}, file)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)


def test_the_prompts_of_void_episodes_are_left_out_of_trls_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import torch
    from accelerate import PartialState
    from trl.trainer import grpo_trainer

    from xp.backends.trl.worker.process import quiet_trainer

    sentence = "All reward functions returned None"
    assert sentence in inspect.getsource(grpo_trainer)
    PartialState()  # TRL's logger needs it
    quiet_trainer(torch.get_num_threads())
    for text in (f"{sentence} for the following kwargs: the prompt", "another warning"):
        grpo_trainer.logger.warning(text, main_process_only=False)
    assert [record.getMessage().rpartition("] ")[2] for record in caplog.records] == [
        "another warning"
    ]
