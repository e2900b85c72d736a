"""Low-rank adapters through the real trainer: what is trained, sent to an engine, published and continued."""

from __future__ import annotations

import copy
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.jobs import train_config
from tests.support.sections import run_spec, with_keys, with_model
from tests.support.tiny import leave_model, tokenizer_and_model
from tests.trainers.trl_ranks import ROWS, Scripted
from xp.backends.trl.control.render import checkpoint
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.lora import merged_weights
from xp.backends.trl.worker.policy import publish_policy
from xp.backends.trl.worker.process import Ranks
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.composition import compose
from xp.episode.tokens import ChatTokens
from xp.errors import XpError
from xp.spec import DType
from xp.worker.adapters import load_policy
from xp.worker.places import RunPaths

OVERRIDES = (
    "training.max_logprob_gap=null",  # the words are scripted, not sampled
    "model.lora={rank: 4, alpha: 16.0, dropout: 0.0, target_modules: null}",
    *(
        "training.num_steps=2",
        "training.prompts_per_step=2",
        "training.group_size=4",
        "training.micro_batch_size=8",
    ),
    *("training.learning_rate=0.01", "training.warmup_updates=0", "training.checkpoint_every=1"),
    "training.kl_coef=0.01",
)
IN_BFLOAT16 = (*OVERRIDES, "model.dtype=bfloat16", "training.learning_rate=1e-4")
"""Updates that are smaller than the rounding of most weights."""

POLICY = run_spec(model__dtype=DType.BFLOAT16).model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root with a model, whose path in it is relative, as a stage's."""
    root = tmp_path_factory.mktemp("lora")
    leave_model(root / "models/base")
    return root


@pytest.fixture(autouse=True)
def in_outputs(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)


@pytest.fixture(scope="module")
def run(base: Path) -> tuple[Any, Any]:
    """A trained trainer in bfloat16, and its spec with its places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        trainer = started(Path("runs/lora"), IN_BFLOAT16)
        trainer.train()
        publish_policy(
            trainer,
            chat(),
            Path("runs/lora/model"),
            POLICY,
            Ranks(),
            "none",
        )
    return trainer, (compose(list(IN_BFLOAT16)), RunPaths("runs/lora", 1, "tasks"))


def chat() -> ChatTokens:
    return ChatTokens(tokenizer_and_model()[0])


def started(directory: Path, overrides: tuple[str, ...], start: str | None = None) -> Any:
    """A trainer of a run in `directory`, before its first step."""
    config = train_config(
        TRLTrainConfig, compose(list(overrides)), RunPaths(str(directory), 1, "tasks")
    )
    config = with_keys(with_model(config, "models/base"), training__initial_checkpoint=start)
    rollouts: Any = Scripted(Ranks())
    return make_trainer(
        config,
        os.environ,
        ChatTokens(tokenizer_and_model()[0]),
        ROWS,
        TRLStepLog(config, None),
        rollouts,
    )


def logprobs(model: Any) -> Any:
    import torch

    ids = torch.randint(
        8,
        600,
        (8, 64),
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        return model(input_ids=ids).logits.double().log_softmax(-1)


def divergence(one: Any, other: Any) -> float:
    return float((one.exp() * (one - other)).sum(-1).mean())


def test_adapters_are_trained_and_the_published_model_has_their_whole_update(
    run: tuple[Any, Any], base: Path
) -> None:
    """In bfloat16, a sum of a weight and its update is mostly the weight."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer, (spec, places) = run
    names = [
        name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad
    ]
    assert names
    assert all("lora_" in name and "lm_head" not in name for name in names)
    learned = logprobs(trainer.model.get_base_model().eval())  # what the engine in process computes
    for place in (checkpoint(spec, places, 2), "runs/lora/model"):
        assert torch.equal(logprobs(load_policy(place, "bfloat16").eval()), learned)

    # In float32, whose rounding is far below the update's effect.
    def frozen() -> Any:
        return AutoModelForCausalLM.from_pretrained("models/base", dtype=torch.bfloat16).float()

    adapters = Path("runs/lora/model/adapter")
    trained = logprobs(PeftModel.from_pretrained(frozen(), str(adapters)))
    published = AutoModelForCausalLM.from_pretrained("runs/lora/model")
    assert published.dtype == torch.float32
    assert divergence(logprobs(published), trained) < divergence(logprobs(frozen()), trained) / 10
    named = json.loads((adapters / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == f"{base}/models/base"


@pytest.mark.usefixtures("run")
def test_a_moved_run_finds_the_base_of_its_adapters(base: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(base, tmp_path / "outputs"))
    before = logprobs(load_policy("runs/lora/model", "bfloat16"))
    config = moved / "runs/lora/model/adapter/adapter_config.json"
    config.write_text(config.read_text().replace(str(base), "/gone/outputs"))
    assert bool((logprobs(load_policy(moved / "runs/lora/model", "bfloat16")) == before).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_gets_trls_weights_and_the_base_stays_bit_for_bit(
    run: tuple[Any, Any], dtype: str
) -> None:
    import torch
    from trl.generation.vllm_generation import VLLMGeneration

    model = copy.deepcopy(run[0].model)
    if dtype == "float32":
        model.float()
    frozen = {
        name: value.clone() for name, value in model.named_parameters() if "lora_" not in name
    }
    for _ in range(3):
        sent = dict(merged_weights(model))
    assert all(
        torch.equal(value, frozen[name])
        for name, value in model.named_parameters()
        if name in frozen
    )
    ours: Any = SimpleNamespace(
        model=model,
        _dist=SimpleNamespace(gather_params=lambda _: nullcontext(), is_fsdp=False),
        _fix_param_name_to_vllm=lambda name, **_: name,
    )
    theirs = {name: value.clone() for name, value in VLLMGeneration._iter_named_params(ours)}
    assert [*sent] == [*theirs]
    for name, value in sent.items():  # a unit in the last place: TRL's sum is rounded twice
        torch.testing.assert_close(
            value, theirs[name], rtol=2**-7 if dtype == "bfloat16" else 1e-6, atol=1e-7
        )


@pytest.mark.usefixtures("run")
def test_training_goes_on_with_the_adapters_of_its_start(capfd: pytest.CaptureFixture[str]) -> None:
    import torch

    trainer = started(Path("runs/more"), IN_BFLOAT16, "runs/lora/model")
    policy = trainer.model.get_base_model()
    assert torch.equal(
        logprobs(policy.eval()), logprobs(load_policy("runs/lora/model", "bfloat16"))
    )
    assert "merged" not in capfd.readouterr().out
    trainer.train()
    # The reference of the KL penalty is the start with its adapters.
    assert trainer.state.log_history[0]["kl"] == 0.0
    publish_policy(
        trainer,
        chat(),
        Path("runs/more/model"),
        POLICY,
        Ranks(),
        "none",
    )
    assert torch.equal(
        logprobs(policy.eval()), logprobs(load_policy("runs/more/model", "bfloat16"))
    )
    other = (*IN_BFLOAT16, "model.lora={rank: 2, alpha: 16.0, dropout: 0.0, target_modules: null}")
    started(Path("runs/other"), other, "runs/lora/model")
    assert "not the settings of model.lora, so these adapters are merged" in capfd.readouterr().out


def test_an_adapter_on_a_tied_embedding_is_refused_when_the_model_is_loaded() -> None:
    tied = "model.lora={rank: 4, alpha: 16.0, dropout: 0.0, target_modules: [embed_tokens, q_proj]}"
    with pytest.raises(XpError, match="embedding and head are one matrix"):
        started(Path("runs/tied"), (*OVERRIDES, tied))


def test_adapters_have_their_dropout_in_an_update_and_none_before_it(tmp_path: Path) -> None:
    import torch

    told = OVERRIDES[1].replace("dropout: 0.0", "dropout: 0.4")
    trainer = started(tmp_path, (*OVERRIDES, told, "training.num_steps=1"))
    trainer.train()
    trainer.model.train()
    ids = torch.arange(10, 34).reshape(2, 12)

    def logps() -> Any:
        return trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), 6
        )[0].detach()

    with torch.no_grad():
        torch.testing.assert_close(logps(), logps(), rtol=0, atol=0)
    assert bool((logps() - logps()).abs().max() > 1e-3)
