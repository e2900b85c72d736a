"""What SkyRL cannot do, shown by its own code or found in it: proofs of the rows' refusals."""

from __future__ import annotations

import re
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typing_extensions

pytest.importorskip("skyrl", reason="SkyRL is not in this environment: make test-skyrl")

from tests.limits.words import has, in_table, lacks, package
from tests.support.families import write_family
from xp.backends.skyrl.worker.process import prepare_process

prepare_process()

SKYRL = package("skyrl")
CHECKS = SKYRL / "train/utils/utils.py"
PARTS = SKYRL / "backends/skyrl_train"
MODEL = PARTS / "workers/model_wrapper.py"


@pytest.fixture(autouse=True)
def older_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL 0.4.0 asks for Python 3.12, for a typed dictionary."""
    monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)


def checked(*overrides: str) -> Any:
    """A configuration that SkyRL's own check has accepted."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import validate_cfg

    config = SkyRLTrainConfig.from_cli_overrides(["trainer.logger=console", *overrides])
    validate_cfg(config)
    return config


def test_there_is_one_reference_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL's own trainer makes one group of a reference, of the only path that its configuration has."""
    from types import SimpleNamespace

    from skyrl.train import trainer
    from skyrl.train.config import SkyRLTrainConfig

    class Group:
        """Records the models of a group instead of starting workers."""

        made: ClassVar[list[tuple[str, str]]] = []

        def __init__(self, *arguments: Any, **_: Any) -> None:
            self.kind = arguments[3]

        def async_init_model(self, path: str, **_: Any) -> list[Any]:
            self.made.append((self.kind, path))
            return []

        def async_run_ray_method(self, *_: Any) -> list[Any]:
            return []

    config: Any = SkyRLTrainConfig()
    config.trainer.algorithm.use_kl_loss = True
    config.trainer.placement.colocate_all = False
    config.trainer.placement.colocate_policy_ref = False
    config.trainer.policy.model.path = "policy"
    config.trainer.ref.model.path = "reference"
    monkeypatch.setattr(trainer, "PPORayActorGroup", Group)
    monkeypatch.setattr(trainer, "ray", SimpleNamespace(get=lambda found: found))
    monkeypatch.setattr(trainer, "WorkerDispatch", lambda **_: None)
    ours: Any = SimpleNamespace(
        cfg=config,
        colocate_all=False,
        total_training_steps=None,
        tokenizer=SimpleNamespace(pad_token_id=0),
        inference_engine_client=None,
    )
    trainer.RayPPOTrainer.build_models(ours, "policy worker", "critic worker", "reference worker")
    assert Group.made == [("reference worker", "reference"), ("policy worker", "policy")]


def test_gspo_has_no_dual_clip() -> None:
    """A ratio far above the bound counts in full where the advantage is negative."""
    import torch
    from skyrl.backends.skyrl_train.utils import ppo_utils

    config = checked("trainer.algorithm.clip_ratio_c=3").trainer.algorithm
    config.loss_reduction = "sequence_mean"
    config.policy_loss_type = "dual_clip"
    arguments = {
        "log_probs": torch.full((1, 2), 2.0),
        "old_log_probs": torch.zeros(1, 2),
        "advantages": -torch.ones(1, 2),
        "config": config,
        "loss_mask": torch.ones(1, 2),
    }
    bounded, _ = ppo_utils.ppo_policy_loss(**arguments)
    unbounded, _ = ppo_utils.gspo_policy_loss(**arguments)
    ratio = torch.tensor(2.0).exp()
    assert float(unbounded) / float(bounded) == pytest.approx(float(ratio) / 3.0)


def test_fsdp2_has_no_attention_for_sinks(tmp_path: Path) -> None:
    """SkyRL puts its own attention into gpt-oss after it has loaded it with FlashAttention 2 or PyTorch's kernel, of
    which transformers has neither: for the first one it looks for a kernel that no lock of xp's has."""
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    start = str(write_family("gpt_oss", tmp_path))
    with pytest.raises(ValueError, match="does not support an attention implementation"):
        HFModelWrapper(start, use_flash_attention_2=False, bf16=False)
    with pytest.raises(ImportError, match="`kernels` is either not installed"):
        HFModelWrapper(start, use_flash_attention_2=True, bf16=False)
    lock = Path(__file__).parents[2] / "runtimes/skyrl/requirements.lock"
    assert not re.search(r"^kernels==", lock.read_text(), re.MULTILINE)


def test_padding_is_removed_for_flash_attention_alone(tmp_path: Path) -> None:
    from tests.support.tiny import leave_model
    from xp.backends.skyrl.worker.process import prepare_process

    prepare_process()
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    leave_model(tmp_path)
    with pytest.raises(AssertionError, match="Flash attention 2 should be used"):
        HFModelWrapper(
            str(tmp_path), use_flash_attention_2=False, remove_microbatch_padding=True, bf16=False
        )


def test_its_strategies_are_fsdp_and_megatron() -> None:
    assert lacks(CHECKS, r"strategy (==|in) .{0,20}ddp")
    folders = {path.name for path in (PARTS / "workers").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == {"fsdp", "megatron"}


def test_megatron_moves_between_phases() -> None:
    """Its configuration has no key that moves parameters during an update, or keeps the optimizer's state."""
    from skyrl.train.config import MegatronConfig

    names = {field.name for field in fields(MegatronConfig)}
    assert not [name for name in names if "offload" in name and "optimizer_config" not in name]
    assert has(PARTS / "distributed/megatron/megatron_strategy.py", "offload_megatron_optimizer")


def test_fsdp2_moves_all_state_or_none() -> None:
    """FSDP2's policy of offloading names no part of the state."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    assert [field.name for field in fields(CPUOffloadPolicy)] == ["pin_memory"]


def test_vllm_is_its_only_engine() -> None:
    """Its check takes any name, and its servers are vLLM's whatever the name is."""
    assert checked("generator.inference_engine.backend=sglang")
    assert has(PARTS / "inference_servers", "import vllm")
    assert lacks(PARTS / "inference_servers", r"import sglang|from sglang")


def test_adapters_have_cuda_graphs() -> None:
    eager = "generator.inference_engine.enforce_eager=true"
    assert checked(eager).generator.inference_engine.enforce_eager is True
    config = checked(eager, "trainer.policy.model.lora.rank=8")
    assert config.generator.inference_engine.enforce_eager is False


def test_guesses_are_of_the_models_own_heads() -> None:
    with pytest.raises(ValueError, match="the FSDP model carries no MTP head"):
        checked("trainer.mtp.enabled=true")
    assert has(CHECKS, '"method": "mtp"')


def test_experts_are_replayed_under_megatron_alone() -> None:
    returned = "generator.inference_engine.enable_return_routed_experts=true"
    with pytest.raises(AssertionError, match="only supported with Megatron training backend"):
        checked(returned, "generator.inference_engine.distributed_executor_backend=mp")
    assert lacks(PARTS / "workers/fsdp", r"routing_replay|router_replay|RouterReplay")


def test_experts_need_an_engine_of_one_machine() -> None:
    returned = "generator.inference_engine.enable_return_routed_experts=true"
    with pytest.raises(AssertionError, match="can hang with the ray backend"):
        checked(returned, "generator.inference_engine.distributed_executor_backend=ray")


def test_alpha_is_a_whole_number() -> None:
    from skyrl.train.config import SkyRLLoraConfig

    kinds = {field.name: field.type for field in fields(SkyRLLoraConfig)}
    assert kinds["alpha"] in (int, "int")


def test_k3_is_cut() -> None:
    import torch
    from skyrl.backends.skyrl_train.utils.ppo_utils import compute_approx_kl

    policy = torch.tensor([-1.0, -1.0])
    reference = torch.tensor([-1.5, 29.0])
    near, far = compute_approx_kl(policy, reference, kl_estimator_type="k3").tolist()
    assert near == pytest.approx(0.1065, abs=1e-4)
    assert far == 10.0


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_weights_are_cut_from_above(kind: str) -> None:
    """They are of the old log-probabilities to the engine's: a small one stays, a large one is the bound."""
    import torch
    from skyrl.backends.skyrl_train.utils.off_policy_correction_utils import compute_tis_ratio

    config = checked().trainer.algorithm.off_policy_correction
    config.token_tis_ratio_clip_high = 2.0
    config.sequence_tis_ratio_clip_high = 2.0
    old = torch.tensor([[-9.0], [-1.0]])
    engine = torch.tensor([[-1.0], [-9.0]])
    weights, _ = compute_tis_ratio(old, engine, torch.ones(2, 1), kind, config)
    small, large = weights.flatten().tolist()
    assert small == pytest.approx(float(torch.tensor(-8.0).exp()))
    assert large == 2.0


@pytest.mark.parametrize(
    ("is_colocated", "has_reference", "moved"),
    [(True, True, ["ref"]), (False, True, ["ref"]), (False, False, [])],
)
def test_unused_models_go_to_the_host(
    is_colocated: bool, has_reference: bool, moved: list[str]
) -> None:
    """Before the policy computes, with the placement of policy and reference that xp pins."""
    from types import SimpleNamespace

    from skyrl.backends.skyrl_train.workers.worker_dispatch import WorkerDispatch

    from xp.backends.skyrl.control.columns import PINS

    went: list[str] = []

    def group(name: str) -> Any:
        return SimpleNamespace(offload_to_cpu=lambda **_: went.append(name))

    place = SimpleNamespace(
        colocate_all=is_colocated,
        colocate_policy_ref=PINS["trainer.placement.colocate_policy_ref"].value,
    )
    config: Any = SimpleNamespace(trainer=SimpleNamespace(placement=place))
    reference = group("ref") if has_reference else None
    WorkerDispatch(config, group("policy"), None, reference)._ensure_on_gpu("policy")
    assert went == moved


def test_micro_batches_of_tokens_ignore_the_size() -> None:
    from inspect import signature

    from skyrl.backends.skyrl_train.workers.worker_utils import TokenBasedBatchIterator

    assert [*signature(TokenBasedBatchIterator).parameters] == ["data", "max_tokens_per_microbatch"]


def test_a_long_episode_is_alone_in_its_micro_batch() -> None:
    from skyrl.train.dataset.bin_packing import make_seq_packer

    batches = make_seq_packer("balanced", bin_capacity=10).pack([25, 4, 5])
    assert sorted(sorted(batch) for batch in batches) == [[0], [1, 2]]


def test_its_peft_leaves_experts_without_adapters() -> None:
    """What the note on model.lora.target_modules says: experts are one tensor each, which `all-linear` leaves out."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
    )
    model = get_peft_model(
        AutoModelForCausalLM.from_config(config), LoraConfig(target_modules="all-linear")
    )
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert any("q_proj" in name for name in trained)
    assert not any("experts" in name for name in trained)
    assert has(MODEL, "target_modules=target_modules")
    assert lacks(MODEL, r"target_parameters")


def test_trainers_have_the_same_number_on_each_node() -> None:
    """Their placement is one number of nodes and one of accelerators on each."""
    placement = checked().trainer.placement
    names = {field.name for field in fields(placement) if field.name.startswith("policy_num")}
    assert names == {"policy_num_nodes", "policy_num_gpus_per_node"}


def test_a_value_of_another_type_is_accepted() -> None:
    from skyrl.train.config import SkyRLTrainConfig

    assert SkyRLTrainConfig.from_cli_overrides(["trainer.epochs=many"]).trainer.epochs == "many"


def test_a_critic_gets_no_pictures() -> None:
    """Its workers' forward passes have tokens alone; those of the policy have pixels."""
    import inspect

    from skyrl.backends.skyrl_train.workers.worker import CriticWorkerBase, PolicyWorkerBase

    assert "pixel_values=" in inspect.getsource(PolicyWorkerBase)
    assert "pixel_values" not in inspect.getsource(CriticWorkerBase)


globals().update(in_table("skyrl"))
