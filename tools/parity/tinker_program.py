"""The recorded batch through SkyRL's JAX server and xp's part of backend=tinker, for `python -m tools.parity`.

`python -m tools.parity.tinker_program <work.json> <result.json>`, in .venv-tinker. The server's engine computes in this
process, in float64, so that its gradients and weights can be read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from tools.parity.found import Found, Weights
from tools.parity.model import empty_network, says
from tools.parity.program import measure
from tools.parity.recorded import ParityCase, RecordedEpisode, settled
from tools.tinker_server import prepare_python
from xp.contrib.tinker.worker.batch import Row, bounds
from xp.contrib.tinker.worker.penalties import Penalties
from xp.contrib.tinker.worker.service import Service, TinkerTrainConfig, grad_norm
from xp.contrib.tinker.worker.step_batch import StepBatch
from xp.episode.advantages import without_variance
from xp.episode.rewards import Overlong
from xp.worker.learning_rate import learning_rate_factor
from xp.worker.program import run_stage

SHARED = (("gate_proj", "up_proj"), ("k_proj", "q_proj", "v_proj"))
"""Layers whose first matrix is one in SkyRL's fused layers."""


def main(argv: Sequence[str]) -> None:
    import jax
    import torch

    prepare_python()
    # With more, two frameworks' threads wait for each other.
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    measure(argv, updates)


@dataclass
class Answer:
    """A future whose result is there."""

    value: Any

    def result(self, timeout: float | None = None) -> Any:
        return self.value


class Client:
    """A training client of the SDK, without its connection.

    Args:
        engine: SkyRL's backend.
        rank, seed: of the adapters.
    """

    def __init__(self, engine: Any, rank: int, seed: int) -> None:
        from skyrl.tinker import types

        self.engine = engine
        self.model = f"model-{len(engine.models)}"
        config = types.LoraConfig(rank=rank, alpha=32.0, seed=seed)
        engine.create_model(self.model, config)
        self.loss = 0.0

    def forward(self, data: Sequence[Any], loss: str, config: Any = None) -> Answer:
        return Answer(self._passed(self.engine.forward, data, loss, config))

    def forward_backward(self, data: Sequence[Any], loss: str, config: Any = None) -> Answer:
        answer = self._passed(self.engine.forward_backward, data, loss, config)
        losses = [fmean(one["elementwise_loss"].data) for one in answer.loss_fn_outputs]
        self.loss = fmean(losses)
        return Answer(answer)

    def optim_step(self, adam: Any) -> Answer:
        from skyrl.tinker import types

        names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
        parameters = types.AdamParams(**{name: getattr(adam, name) for name in names})
        return Answer(
            self.engine.optim_step(self.model, types.OptimStepInput(adam_params=parameters))
        )

    def _passed(self, make: Any, data: Sequence[Any], loss: str, config: Any) -> Any:
        from skyrl.tinker import types
        from skyrl.tinker.engine import prepare_model_pass_batch

        requests = types.ForwardBackwardInput(
            data=[_server_datum(one) for one in data], loss_fn=loss, loss_fn_config=config
        )
        answer = make(prepare_model_pass_batch({"1": (self.model, requests)}))["1"]
        outputs = [
            {name: SimpleNamespace(data=value["data"]) for name, value in one.items()}
            for one in answer.loss_fn_outputs
        ]
        return SimpleNamespace(loss_fn_outputs=outputs, metrics={})

    def gradient(self) -> Weights:
        """Gradient of the adapters, as the optimizer takes it."""
        import jax.numpy as jnp
        from flax import nnx

        engine = self.engine
        index = engine.models[self.model].adapter_index
        mean = engine.accumulated_grads.get_mean(jnp.int32(index))
        return self._named(nnx.merge(engine.graphdef, mean, engine.non_lora_params))

    def weights(self) -> Weights:
        """The adapters."""
        return self._named(self.engine.model)

    def _named(self, model: Any) -> Weights:
        import tempfile

        from safetensors.torch import load_file
        from skyrl.tx.layers.lora import filter_lora
        from skyrl.tx.utils.models import save_safetensors

        meta = self.engine.models[self.model]
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "adapters.safetensors")
            save_safetensors(
                self.engine.model.config,
                model,
                file,
                prefix="base_model.model.",
                filter_fn=lambda path: (
                    ("lora_A" in path or "lora_B" in path) and filter_lora(meta.lora_config, path)
                ),
                adapter_index=meta.adapter_index,
                rank=meta.lora_config.rank,
            )
            named = {name: one.double() for name, one in load_file(file).items()}
        for first, *others in SHARED:
            for name in [one for one in named if f".{first}.lora_A" in one]:
                names = [name, *(name.replace(first, other) for other in others)]
                shared = [named.pop(one) for one in names]
                named[".".join(names)] = shared[0]
        return named


def _server_datum(datum: Any) -> Any:
    """A Datum as SkyRL's API passes it to its engine."""
    from skyrl.tinker import types

    inputs = {
        name: types.TensorData(data=list(one.data)) for name, one in datum.loss_fn_inputs.items()
    }
    inputs.setdefault("weights", types.TensorData(data=[1.0] * len(inputs["target_tokens"].data)))
    tokens = types.EncodedTextChunk(tokens=datum.model_input.to_ints())
    return types.Datum(
        model_input=types.ModelInput(chunks=[tokens]), loss_fn_inputs=types.LossFnInputs(**inputs)
    )


class LocalService(Service):
    """The service in this process."""

    engine: Any

    def __post_init__(self) -> None:
        self.deadline_s = 1.0

    def train(self, state: str | None = None, *, has_optimizer: bool = True) -> Client:
        return Client(self.engine, int(self.requests["rank"]), int(self.requests["seed"]))

    def wait(self, future: Any, what: str) -> Any:
        return future.result()


@cache
def engine_of(model: Path) -> Any:
    """SkyRL's backend with a model, which all cases share, so that nothing is compiled twice."""
    import jax.numpy as jnp
    from skyrl.backends import jax as backend

    # The server's own are of the model's file; the measure is in float64.
    backend.get_dtype = lambda _: jnp.float64
    config = backend.JaxBackendConfig(max_lora_adapters=3, max_lora_rank=16)
    return backend.JaxBackendImpl(str(model), config, 0)


def forget(engine: Any) -> None:
    """Frees the places of all adapters."""
    for model in [*engine.models]:
        engine.delete_model(model)


def updates(
    case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
) -> Found:
    """Run one rollout step of the case through the server's engine, which writes nothing."""
    del scratch
    import torch
    from safetensors.torch import load_file

    config = TinkerTrainConfig.from_json(case.config)
    spec = config.spec
    service = LocalService(config.requests)
    service.engine = engine_of(model)
    service.measure(samples_ahead=False)
    forget(service.engine)
    client = service.train()
    rewards = [settled(one, Overlong.of(spec)) for one in episodes]
    flat = without_variance(rewards, [str(one.group) for one in episodes])
    network: Any = empty_network(model)
    network.load_state_dict(load_file(model / "model.safetensors"), strict=False)
    network.lm_head.weight = network.model.embed_tokens.weight
    rows = []
    for number, episode in enumerate(episodes):
        mask = list(episode.trained(case.rule.mask_truncated))
        if any(mask) and not (case.rule.zero_variance_filter and flat[number]):
            with torch.no_grad():
                own, _ = says(network, episode, 1.0)
            engines = (own + own.new_tensor(episode.noise)).tolist()
            ids = [*episode.prompt_ids, *episode.response_ids]
            rows.append(Row(ids, engines, mask, number))
    played: Any = [SimpleNamespace(outcome=SimpleNamespace(reward=reward)) for reward in rewards]
    batch = StepBatch(service, config, Penalties(spec, service, {}, None), rows)
    reported = batch.prepare(client, played)
    found = Found(batch._of_episodes(played, {}), [], [], [], client.weights(), [])
    lines = []
    training = spec.training
    size = training.episodes_per_step // training.updates_per_step
    for number in range(training.all_updates_per_step):
        part = number % training.updates_per_step
        members = [at for at in range(len(episodes)) if at // size == part]
        chosen = [at for at, row in enumerate(rows) if row.episode in members]
        factor = learning_rate_factor(
            training.lr_schedule, training.warmup_updates, training.all_updates_per_step, number
        )
        data, of_rows = batch.data(chosen)
        requests = config.requests
        answer = client.forward_backward(data, requests["loss_fn"], bounds(requests) or None)
        outputs = [one["logprobs"].data for one in answer.result().loss_fn_outputs]
        line = batch.metrics(chosen, of_rows, outputs)
        found.gradients.append(client.gradient())
        step = client.optim_step(service.adam(training.learning_rate * factor)).result()
        found.losses.append(client.loss)
        found.rates.append(training.learning_rate * factor)
        found.parameters.append(client.weights())
        found.members.append(members)
        lines.append({**line, "training/grad_norm": grad_norm(step) or 0.0})
    forget(service.engine)
    if "training/logprob_gap" in reported or lines:
        gap = reported.pop("training/logprob_gap", lines[0]["training/logprob_gap"])
        found.reported["training/logprob_gap"] = gap
    for name in ("training/loss", "training/clip_fraction", "training/grad_norm"):
        found.reported[name] = fmean(line[name] for line in lines)
    found.reported.update(reported)
    return found


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
