"""One step of SkyRL on a tiny network, in this process: sampled, updated by the FSDP worker, sent and published.

`python -m tests.trainers.skyrl_family <config.json> <directory of the model> <existing directory>` writes `model` and
`result.json` there. Not real: CUDA and NCCL (the CPU, gloo), and Ray between the trainer and its worker
(tools.parity.skyrl_dispatch).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.sections import sampling_of
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig

PROMPTS = ([11, 12, 13, 14, 15, 16, 17], [21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31])
GROUP_SIZE = 2
NUM_TOKENS = 12
END_ID = -1
"""No token, so that all turns have the same length."""


def main(config_file: Path, start: Path, place: Path) -> None:
    """Writes the published model, and the log-probabilities of the sampled tokens by everything that computes them."""
    import torch

    from xp.backends.skyrl.worker.rehearsal import cpu_torch

    cpu_torch.prepare_process()
    torch.set_num_threads(1)

    from skyrl.backends.skyrl_train.distributed.fsdp_utils import collect_lora_params

    from tools.parity.skyrl_dispatch import InProcess
    from tools.parity.skyrl_program import trainer_without_engine
    from xp.backends.skyrl.worker.checkpoints import save_policy
    from xp.backends.skyrl.worker.rehearsal.engine import Sampler
    from xp.backends.skyrl.worker.rehearsal.weights import FileEngine
    from xp.lib.loopback import free_port

    config = SkyRLTrainStageConfig.from_json(config_file.read_text())
    cfg, trainer = trainer_without_engine(config, start, place)
    # Adapters are planned for accelerators, which compute in bfloat16.
    cfg.trainer.bf16 = False
    cfg.trainer.policy.fsdp_config.mixed_precision.param_dtype = "fp32"
    sampler = Sampler(str(start), num_threads=1)
    episodes = sampled(sampler)
    trainer.dispatch = InProcess(cfg, start, 1, free_port())
    trainer.ref_model = trainer.dispatch.workers.get("ref")
    generated, uids = trainer.postprocess_generator_output(generated_of(episodes), episode_groups())
    data = trainer.fwd_logprobs_values_reward(trainer.convert_to_training_input(generated, uids))
    result = {
        "sampled": [logprobs for _, _, logprobs in episodes],
        "scored": data["action_log_probs"].tolist(),
        "model": [of_model(start, prompt, turn) for prompt, turn, _ in episodes],
    }
    trainer.train_critic_and_policy(trainer.compute_advantages_and_returns(data))
    worker = trainer.dispatch.workers["policy"]
    if config.spec.model.lora is None:
        source = worker._build_weight_source(torch.float32, "nccl")
        result["sent"] = [name for name, _ in source]
        FileEngine(place / "weights.safetensors", source).send_weights()
        sampler.take(place / "weights.safetensors")
    else:
        result["sent"] = list(collect_lora_params(module=worker.model.model))
    data = trainer.fwd_logprobs_values_reward(data)
    result["updated"] = data["action_log_probs"].tolist()
    save_policy(trainer, "float32", place / "model")
    result["published"] = [
        of_model(
            place / "model",
            prompt,
            turn,
        )
        for prompt, turn, _ in episodes
    ]
    result["engine"] = [
        of_network(
            sampler._model,
            prompt,
            turn,
        )
        for prompt, turn, _ in episodes
    ]
    (place / "result.json").write_text(json.dumps(result))


def episode_groups() -> list[str]:
    return [str(number) for number in range(len(PROMPTS)) for _ in range(GROUP_SIZE)]


def sampled(sampler: Any) -> list[tuple[list[int], list[int], list[float]]]:
    """Prompt, turn and log-probabilities of each episode."""
    from xp.backends.skyrl.worker.rehearsal.engine import SampleRequest

    sampling = sampling_of(64, NUM_TOKENS, 64)
    prompts = [prompt for prompt in PROMPTS for _ in range(GROUP_SIZE)]
    requests = [
        SampleRequest(prompt, sampling, (END_ID,), str(number))
        for number, prompt in enumerate(prompts)
    ]
    return [
        (prompt, turn.ids, turn.logprobs)
        for prompt, turn in zip(prompts, sampler.write(requests), strict=True)
    ]


def generated_of(episodes: Sequence[tuple[list[int], list[int], list[float]]]) -> dict[str, Any]:
    """The episodes in the form in which xp's generator returns them; the first of each group is the better one."""
    return {
        "prompt_token_ids": [prompt for prompt, _, _ in episodes],
        "response_ids": [turn for _, turn, _ in episodes],
        "rewards": [
            [0.0] * (len(turn) - 1) + [float(number % GROUP_SIZE == 0)]
            for number, (_, turn, _) in enumerate(episodes)
        ],
        "loss_masks": [[1] * len(turn) for _, turn, _ in episodes],
        "stop_reasons": ["stop"] * len(episodes),
        "rollout_logprobs": [logprobs for _, _, logprobs in episodes],
    }


def of_model(directory: Path, prompt: list[int], turn: list[int]) -> list[float]:
    """Log-probabilities of a turn by the forward pass of the model that transformers loads."""
    import torch

    from xp.worker.media import load_network

    return of_network(load_network(directory, torch.float32).eval(), prompt, turn)


def of_network(model: Any, prompt: list[int], turn: list[int]) -> list[float]:
    """Log-probabilities of a turn by a model's own forward pass, without padding."""
    import torch

    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *turn]])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    values: list[float] = logprobs[-len(turn) :].tolist()
    return values


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
