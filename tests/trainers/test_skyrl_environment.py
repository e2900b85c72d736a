"""SkyRL's loop against the real local ORS server, from the prepared set to the tokens that train."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import leave_model

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.fake_session import call
from tests.support.tiny import tokenizer_and_model
from tests.trainers.skyrl_parts import REHEARSAL, ScriptedClient, generator, request, train_config
from tools.tiny_model.scripted_play import Player
from tools.tiny_model.scripted_play import play as detect
from xp.composition import compose
from xp.envs.builtin.mystery import generate_case
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.planning.episode import episode_config
from xp.planning.stages import prepare_config
from xp.tasks.prepare import prepare
from xp.tasks.row import TaskRow

SPEC = compose([*REHEARSAL, "env.train.num_tasks=3", "env.held_out.num_tasks=1"])
CONFIG = train_config()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[TaskRow]:
    found = prepare(prepare_config(SPEC), os.environ, tmp_path_factory.mktemp("outputs"))
    return list(found.rows("train"))


@pytest.fixture(scope="module")
def mix() -> Iterator[EnvironmentMixture]:
    with EnvironmentMixture(episode_config(SPEC), os.environ) as opened:
        yield opened


def test_a_diligent_detective_is_paid_in_full_on_the_last_token(
    rows: list[TaskRow], mix: EnvironmentMixture
) -> None:
    row = rows[0]
    steps = detect(
        generate_case(row.split, row.index),
        Player.DILIGENT,
        random.Random(0),
    )
    client = ScriptedClient([call(step.tool, **step.arguments) for step in steps])
    made = generator(client, mix, CONFIG)
    wanted = request([row], 2, CONFIG)
    output = asyncio.run(made.generate(wanted))
    for number, one in enumerate(made.played(wanted)):
        outcome = one.episode.settle()
        ids = output["response_ids"][number]
        mask = output["loss_masks"][number]
        assert (outcome.status, outcome.reward, outcome.num_turns) == (
            EpisodeStatus.FINISHED,
            1.0,
            len(steps),
        )
        assert output["rewards"][number] == [0.0] * (len(ids) - 1) + [1.0]
        assert trained_text(ids, mask) == "".join(
            f"{turn.text}<|im_end|>" for turn in one.episode.turns
        )
        assert [step.reply in tokenizer_and_model()[0].decode(ids) for step in steps[:-1]] == [
            True
        ] * (len(steps) - 1)
        assert sum(mask) == one.tokens.generated


def test_a_real_model_writes_what_the_trainer_finds_as_probable(
    rows: list[TaskRow], mix: EnvironmentMixture, tmp_path: Path
) -> None:
    import torch

    from xp.backends.skyrl.worker.rehearsal.engine import CpuEngine

    _, model = tokenizer_and_model()
    leave_model(tmp_path / "model")
    engine = CpuEngine(str(tmp_path / "model"), tmp_path / "weights.safetensors", num_threads=1)
    made = generator(engine, mix, CONFIG)
    wanted = request(rows, 4, CONFIG)
    output = asyncio.run(made.generate(wanted))
    plays = made.played(wanted)
    assert len(plays) == 12
    for number, one in enumerate(plays):
        prompt, ids, mask = (
            output[key][number] for key in ("prompt_token_ids", "response_ids", "loss_masks")
        )
        outcome = one.episode.settle()
        assert sum(output["rewards"][number]) == outcome.reward
        assert sum(mask) == one.tokens.generated > 0
        assert (
            len(output["rollout_logprobs"][number])
            == len(ids)
            <= CONFIG.spec.training.max_response_tokens
        )
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        expected = logits.log_softmax(-1)[range(len(ids)), ids]
        trained = torch.tensor(mask, dtype=torch.bool)
        torch.testing.assert_close(
            torch.tensor(output["rollout_logprobs"][number])[trained],
            expected[trained],
            atol=1e-3,
            rtol=1e-3,
        )


def test_the_engine_writes_with_the_weights_that_skyrls_workers_left_last(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from xp.backends.skyrl.worker.rehearsal.engine import CpuEngine

    tokenizer, model = tokenizer_and_model()
    leave_model(tmp_path / "model")
    engine = CpuEngine(str(tmp_path / "model"), tmp_path / "weights.safetensors", num_threads=1)

    async def first_token() -> int:
        sampling = {
            "max_tokens": 1,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": -1,
            "logprobs": 1,
            "seed": 1,
        }
        sampling["stop_token_ids"] = [tokenizer.eos_token_id]
        output = await engine.generate(
            {"prompt_token_ids": [[20, 21, 22]], "sampling_params": sampling}
        )
        return int(output["response_ids"][0][0])

    before = asyncio.run(first_token())
    assert before == int(model(torch.tensor([[20, 21, 22]])).logits[0, -1].argmax())
    weights = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    save_file(weights, tmp_path / "weights.safetensors")
    asyncio.run(engine.wake_up(tags=["kv_cache"]))
    assert asyncio.run(first_token()) == 0
    save_file({"of.another.model": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(RuntimeError, match="not of this model"):
        asyncio.run(engine.wake_up())


def trained_text(ids: list[int], mask: list[int]) -> str:
    own = [token for token, is_trained in zip(ids, mask, strict=True) if is_trained]
    text: Any = tokenizer_and_model()[0].decode(own)
    return str(text)
