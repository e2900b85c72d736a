"""Limits of the Tinker API, of its SDK and of SkyRL's server, on which refusals and notes of backend=tinker rest."""

from __future__ import annotations

import inspect
import re
import sys
import typing

import pytest

types = pytest.importorskip("tinker.types", reason="needs .venv-tinker: make tinker-server")

if sys.version_info < (3, 12):
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict


def fields(model: typing.Any) -> set[str]:
    return set(getattr(model, "model_fields", None) or typing.get_type_hints(model))


def test_adapters_have_a_rank_a_seed_and_three_parts() -> None:
    parts = {"train_unembed", "train_mlp", "train_attn"}
    assert fields(types.LoraConfig) == {"rank", "seed", *parts}


def test_alpha_is_the_services_own() -> None:
    from skyrl.tinker import api

    assert fields(api.LoRAConfig) == {"rank", "seed"}
    assert "alpha=32.0" in inspect.getsource(api.create_model)


def test_a_model_is_made_with_adapters() -> None:
    from tinker import ServiceClient

    makers = [name for name in dir(ServiceClient) if re.match(r"create_\w*training_client$", name)]
    assert makers == ["create_lora_training_client"]
    arguments = set(inspect.signature(ServiceClient.create_lora_training_client).parameters)
    parts = {"train_mlp", "train_attn", "train_unembed"}
    assert arguments == {"self", "base_model", "rank", "seed", *parts, "user_metadata"}


def test_a_request_has_no_data_type() -> None:
    for request in (types.CreateModelRequest, types.ForwardBackwardInput, types.SampleRequest):
        assert not [name for name in fields(request) if "dtype" in name or "precision" in name]


def test_a_request_has_no_micro_batch() -> None:
    assert fields(types.ForwardBackwardInput) == {"data", "loss_fn", "loss_fn_config"}


def test_its_losses_are_four() -> None:
    """The SDK's fifth, dro, is none that xp has; SkyRL's JAX backend has four."""
    from skyrl.tinker.types import LOSS_TYPES

    known = {"cross_entropy", "importance_sampling", "ppo", "cispo"}
    assert set(typing.get_args(types.LossFnType)) == {*known, "dro"}
    assert set(LOSS_TYPES) == known


def test_a_loss_has_two_bounds() -> None:
    from skyrl.tinker.api import ForwardBackwardInput

    allowed = ForwardBackwardInput._ALLOWED_KEYS_BY_LOSS_FN
    bounds = {"clip_low_threshold", "clip_high_threshold"}
    assert allowed["cispo"] == bounds
    assert allowed["ppo"] - {"value_clip"} == bounds
    assert allowed["importance_sampling"] == set()


def test_ratios_are_of_tokens() -> None:
    from skyrl.tinker import loss_fns

    for loss in (loss_fns.ppo_loss, loss_fns.cispo_loss, loss_fns.importance_sampling_loss):
        source = inspect.getsource(loss)
        assert "prob_ratio = jnp.exp(target_logprobs - sampling_logprobs)" in source
        assert "mean" not in source


def test_a_loss_has_no_temperature() -> None:
    from skyrl.tinker import types as server

    assert not [name for name in fields(server.ForwardBackwardInput) if "temperature" in name]
    assert not [name for name in fields(server.LossFnInputs) if "temperature" in name]


def test_its_optimizer_is_adamw() -> None:
    from skyrl.backends.jax import JaxBackendImpl

    betas = {"beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"}
    assert fields(types.AdamParams) == {"learning_rate", *betas}
    assert "optax.adamw" in inspect.getsource(JaxBackendImpl.create_model)


def test_skyrls_server_does_not_cut_gradients() -> None:
    from skyrl.tinker import api

    assert not [name for name in fields(api.AdamParams) if "clip" in name]


def test_sampling_has_six_parameters() -> None:
    cuts = {"temperature", "top_k", "top_p"}
    assert fields(types.SamplingParams) == {"max_tokens", "seed", "stop", *cuts}


def test_stops_are_tokens_or_texts() -> None:
    from fastapi import HTTPException
    from skyrl.tinker.api import SamplingParams

    mixed = SamplingParams.model_construct(
        stop=[1, "x"], max_tokens=1, seed=1, temperature=1, top_k=-1, top_p=1
    )
    with pytest.raises(HTTPException, match="not mixed"):
        mixed.to_types()


def test_a_sample_is_tokens_and_log_probabilities() -> None:
    from skyrl.tinker.types import GeneratedSequence

    assert fields(GeneratedSequence) == {"stop_reason", "tokens", "logprobs"}


def test_log_probabilities_are_of_all_tokens() -> None:
    from skyrl.tx.utils.generator import GeneratorMixin

    source = inspect.getsource(GeneratorMixin)
    drawn = source.index("apply_top_p_batch(scaled_logits")
    assert "logits_to_logprobs(s.logits, next_token[:, 0])" in source[drawn:]


def test_weights_are_loaded_from_its_own_paths() -> None:
    from skyrl.tinker.types import TinkerPath

    assert TinkerPath.parse("tinker://model/weights/a") is not None
    assert TinkerPath.parse("/home/me/checkpoint") is None
    assert TinkerPath.parse("https://huggingface.co/org/model") is None


def test_skyrls_jax_server_samples_from_the_weights_that_it_trains() -> None:
    from skyrl.backends.jax import JaxBackendImpl

    loads = inspect.getsource(JaxBackendImpl.load_sampler_checkpoint)
    assert "load_lora_checkpoint(self.model, adapter_config, adapter_index" in loads
    reads = inspect.getsource(JaxBackendImpl.load_sampler_weights)
    assert "self.models[model_id].adapter_index" in reads
