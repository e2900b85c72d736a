"""xp's functions inside Slime's real rollout: its samples, its generate_and_rm, its conversion to training data."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.stubs.teacher_server import KEY, serving
from tests.support import grouped
from tests.support.fake_session import call
from tests.support.scripts import (
    DRAWN,
    NO_RETRY,
    OVERLONG,
    ROW,
    SCRIPTS,
    DrawnMix,
    EpisodeFacts,
    FakeMix,
    Script,
    bare,
    check_drawn,
    check_penalty,
    dialogue,
    resettled,
)
from tests.support.sections import chat_model, sampling_of
from tests.support.tiny import tokenizer_and_model, turn_ids
from tests.trainers.slime_play import (
    ROOMY,
    Kept,
    args,
    arguments,
    converted,
    play_group,
    play_script,
    says_script,
    script_named,
)
from tests.trainers.slime_setup import (
    LIMITS,
    detective,
    engine,
    group_of,
    needs_slime,
    put_worker,
    worker_config,
    written_by_policy,
)
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE
from xp.backends.slime.worker.rollout_process import read_played
from xp.composition import compose
from xp.envs.base import EnvUnavailable, Task
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode, XpError
from xp.planning.episode import episode_config
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.worker.slime_names import SCORE_GROUP

__all__ = ["args", "arguments"]
pytestmark = needs_slime


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_slime_agrees_with_the_bare_episode_and_its_sample_with_the_outcome(
    args: Any, script: Script
) -> None:
    from slime.utils.types import Sample

    (sample,), mix, recorder = play_script(args, script)
    assert resettled(recorder.records[0], script) == bare(script).outcome
    outcome = read_played(sample.metadata).outcome
    trained = tokenizer_and_model()[0].decode(written_by_policy(sample))
    assert EpisodeFacts(
        outcome,
        dialogue(mix.episodes[0]),
        trained,
    ) == bare(script)
    status = {
        EpisodeStatus.TRUNCATED: Sample.Status.TRUNCATED,
        EpisodeStatus.VOID: Sample.Status.FAILED,
    }
    assert sample.status is status.get(outcome.status, Sample.Status.COMPLETED)
    assert math.isnan(sample.reward) if outcome.reward is None else sample.reward == outcome.reward
    assert sample.remove_sample is (outcome.status is EpisodeStatus.VOID)
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
    assert all(type(token) is int for token in sample.tokens)


@pytest.mark.parametrize("function", ["ranked", "broken"])
def test_a_groups_rewards_reach_slimes_samples(args: Any, function: str) -> None:
    kept = Kept()
    args.group_rm = True
    args.custom_rm_path = SCORE_GROUP
    with grouped.mixture(function) as mix, engine(args, says_script(Script("wins", grouped.WINS))):
        put_worker(args, worker_config(args.xp_root, ROOMY), mix, kept)
        samples = play_group(args, group_of(ROW, len(grouped.OWN)))
    outcomes = [read_played(sample.metadata).outcome for sample in samples]
    assert [record.outcome for record in kept.records] == outcomes
    assert [sample.remove_sample for sample in samples] == [one.reward is None for one in outcomes]
    if function == "ranked":
        grouped.check_group(
            outcomes, [None if math.isnan(sample.reward) else sample.reward for sample in samples]
        )
    else:
        grouped.check_void_group(outcomes)
        assert {sample.status for sample in samples} == {samples[0].Status.FAILED}


def test_the_episodes_of_a_held_out_task_are_a_group(args: Any) -> None:
    kept = Kept()
    args.group_rm = False  # as xp's evaluation function sets it
    with grouped.mixture("ranked") as mix, engine(args, says_script(Script("wins", grouped.WINS))):
        worker = put_worker(args, worker_config(args.xp_root, ROOMY), mix, kept)
        worker.__dict__["evaluation"] = SimpleNamespace(samples_per_task=len(grouped.OWN))
        worker.evaluated = "during"
        samples = play_group(
            args,
            group_of(ROW, len(grouped.OWN)),
            evaluation=True,
        )
    outcomes = [read_played(sample.metadata).outcome for sample in samples]
    assert len(kept.records) == len(outcomes)
    grouped.check_group(
        outcomes, [None if math.isnan(sample.reward) else sample.reward for sample in samples]
    )
    assert not worker.held_out_groups


def test_a_stop_text_reaches_sglang_and_stays_in_the_turn(args: Any) -> None:
    own = script_named("stops at a text")
    args.rollout_stop = list(own.stop)
    put_worker(
        args,
        worker_config(args.xp_root, ROOMY),
        FakeMix(own.rules),
        Kept(),
    )
    with engine(args, says_script(own)) as server:
        (sample,) = play_group(args, group_of(ROW, 1))
    asked = [body["sampling_params"] for body in server.requests]
    assert [(one["stop"], one["no_stop_trim"]) for one in asked] == [(list(own.stop), True)] * len(
        own.texts
    )
    assert tokenizer_and_model()[0].decode(written_by_policy(sample)) == "".join(own.texts)


@pytest.mark.parametrize(("evaluation", "expected"), [(False, 0.1), (True, None)])
def test_min_p_reaches_sglang_in_training_only(
    args: Any, evaluation: bool, expected: float | None
) -> None:
    own = script_named("stops at a text")
    config = worker_config(args.xp_root, ROOMY, min_p=0.1)
    put_worker(args, config, FakeMix(own.rules), Kept())
    with engine(args, says_script(own)) as server:
        play_group(args, group_of(ROW, 1), evaluation=evaluation)
    assert {body["sampling_params"].get("min_p") for body in server.requests} == {expected}


@pytest.mark.parametrize(
    "stop", [(), ("bu",)], ids=["no text ends a turn", "a text ends the turn at its limit"]
)
def test_a_turn_that_sglang_cuts_truncates_its_episode(args: Any, stop: tuple[str, ...]) -> None:
    text = "It was the bu"
    limit = len(tokenizer_and_model()[0](text, add_special_tokens=False)["input_ids"])
    script = Script("is cut", (text if stop else f"{text}tler.",), stop=stop)
    (sample,), _, _ = play_script(
        args, script, mask_truncated=True, limits=sampling_of(400, limit, 2000)
    )
    assert sample.response_length == limit
    assert read_played(sample.metadata).outcome.status is (
        EpisodeStatus.STOPPED if stop else EpisodeStatus.TRUNCATED
    )
    assert sample.remove_sample is not bool(stop)


@pytest.fixture
def whodunit(args: Any) -> Iterator[Any]:
    """The real local ORS server of the bundled mysteries, as the run's episode.json names it."""
    config = worker_config(args.xp_root)
    stage = args.xp_root / config.stage_dir
    (stage / "episode.json").write_text(episode_config(compose([])).to_json())
    (args.xp_root / "worker.json").write_text(config.to_json())
    setattr(args, WORKER_ATTRIBUTE, str(args.xp_root / "worker.json"))
    yield args
    from xp.backends.slime.worker.rollout_process import worker_of

    worker_of(args).mix.close()


def mystery(index: int) -> TaskRow:
    from xp.envs.base import Message
    from xp.envs.builtin.mystery import TOOLS, generate_case
    from xp.episode.prompt import tool_schemas

    prompt = Message(role="user", content=generate_case("train", index).prompt)
    tools = json.dumps(tool_schemas(TOOLS), sort_keys=True)
    name = next(iter(compose([]).env.members))
    return TaskRow(
        f"{name}/train/{index}", name, Purpose.TRAIN, "train", index, "h", (prompt,), tools, 1.0
    )


def test_every_token_of_a_real_environment_is_where_it_belongs(whodunit: Any) -> None:
    groups = [group_of(mystery(index), 4, index) for index in range(4)]
    with engine(whodunit, detective(random.Random(5))) as server:
        samples = [sample for group in groups for sample in play_group(whodunit, group)]
        assert {body["sampling_params"]["max_new_tokens"] for body in server.requests} == {
            LIMITS.max_tokens_per_turn
        }
        assert all(
            set(body) == {"input_ids", "sampling_params", "return_logprob"}
            for body in server.requests
        )
        for sample in samples:
            _check_tokens(sample, server.policy)
    assert {read_played(sample.metadata).outcome.status for sample in samples} == {
        EpisodeStatus.FINISHED
    }
    assert {read_played(sample.metadata).outcome.num_turns for sample in samples} == {2}
    assert len({sample.reward for sample in samples}) > 1
    records = read_trajectories(next((whodunit.xp_root / "runs").rglob("trajectories/train.jsonl")))
    assert [record["outcome"]["reward"] for record in records].count(None) == 0
    assert sorted(record["sample"] for record in records) == sorted([0, 1, 2, 3] * 4)
    assert all(
        record["tokens"]["generated"] > 0 < record["tokens"]["observed"] for record in records
    )
    assert all(record["prompt"] is None for record in records)


def _check_tokens(sample: Any, policy: Any) -> None:
    """Turn by turn: the log-probs are the real model's for just these ids, and the environment's part has none."""
    tokenizer, _ = tokenizer_and_model()
    start = len(sample.tokens) - sample.response_length
    position = 0
    turns = 0
    while position < sample.response_length:
        end = position
        while end < sample.response_length and sample.loss_mask[end] == sample.loss_mask[position]:
            end += 1
        ids = sample.tokens[start + position : start + end]
        if sample.loss_mask[position]:
            expected = policy.logprobs(sample.tokens[: start + position], ids, 1.0)
            assert sample.rollout_log_probs[position:end] == pytest.approx(expected, abs=1e-4)
            assert ids[-1] == tokenizer.eos_token_id
            turns += 1
        else:
            assert set(sample.rollout_log_probs[position:end]) == {0.0}
            assert "<tool_response>" in tokenizer.decode(ids)
        position = end
    assert turns == read_played(sample.metadata).outcome.num_turns


@pytest.mark.parametrize("evaluation", [False, True])
def test_an_episode_ends_where_the_next_turn_has_no_room(args: Any, evaluation: bool) -> None:
    """A held-out episode has a limit of its own."""
    scores = script_named("scores on the way")
    turn = len(turn_ids(scores.texts[0]))
    both = {"limits": sampling_of(400, 200, turn + 3), "evaluation_limits": ROOMY}
    (sample,), _, kept = play_script(args, scores, evaluation=evaluation, **both)
    outcome = kept.records[0].outcome
    if evaluation:
        assert outcome.num_turns > 1
    else:
        assert outcome.status == EpisodeStatus.TRUNCATED
        assert outcome.num_turns == 1
        assert outcome.reward == 0.1
        assert sample.response_length == turn


@pytest.mark.parametrize("evaluation", [False, True])
def test_only_a_trained_episode_has_the_penalty_for_its_length(args: Any, evaluation: bool) -> None:
    script = script_named("scores on the way")
    both = {"limits": ROOMY, "evaluation_limits": ROOMY}
    (sample,), _, kept = play_script(
        args, script, evaluation=evaluation, overlong=OVERLONG.rule, **both
    )
    outcome = kept.records[0].outcome
    if evaluation:
        assert outcome.unpenalized is None
    else:
        check_penalty(outcome, sample.response_length, script)
        assert sample.reward == outcome.reward


def test_a_void_episode_leaves_its_group_and_slimes_training_data(args: Any) -> None:
    """Slime's own conversion of the samples, with xp's advantages in it."""
    words = cycle(["win", "down", "lose", "win"])

    def says(ids: list[int]) -> list[int]:
        del ids
        return turn_ids(call(next(words)))

    mix = FakeMix(NO_RETRY)
    put_worker(args, worker_config(args.xp_root), mix, Kept())
    with engine(args, says):
        groups = [
            play_group(
                args,
                group_of(
                    ROW,
                    4,
                    number,
                ),
            )
            for number in range(2)
        ]
    samples = [sample for group in groups for sample in group]
    data = converted(args, samples)
    for group, own in zip(
        (samples[:4], samples[4:]), (data["rewards"][:4], data["rewards"][4:]), strict=True
    ):
        valid = [reward for reward in (sample.reward for sample in group) if not math.isnan(reward)]
        assert sorted(valid) == [0.0, 1.0, 1.0]
        mean = 2 / 3
        std = math.sqrt(1 / 3)
        expected = [
            0.0 if math.isnan(sample.reward) else (sample.reward - mean) / (std + 1e-6)
            for sample in group
        ]
        assert own == pytest.approx(expected)
    for sample, mask, total in zip(
        samples, data["loss_masks"], data["rollout_mask_sums"], strict=True
    ):
        assert (sum(mask) == 0) is math.isnan(sample.reward)
        assert total == sum(mask)
    assert all(
        len(one) == length
        for one, length in zip(data["rollout_log_probs"], data["response_lengths"], strict=True)
    )
    assert all(math.isfinite(advantage) for advantage in data["rewards"])


def test_a_teacher_on_a_server_scores_each_token_and_replaces_the_rewards(
    args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slime's own conversion carries the teacher's log-probabilities; this teacher is the policy itself."""
    tokenizer, model = tokenizer_and_model()
    words = iter(["win", "down", "lose", "win"])

    def says(ids: list[int]) -> list[int]:
        del ids
        return turn_ids(call(next(words)))

    monkeypatch.setenv("TEACHER_KEY", KEY)
    with serving(model, tokenizer) as teacher, engine(args, says):
        put_worker(
            args, worker_config(args.xp_root, distill=teacher.rule), FakeMix(NO_RETRY), Kept()
        )
        samples = play_group(args, group_of(ROW, 4, 0))
    data = converted(args, samples)
    assert data["rewards"] == [0.0] * 4
    assert sorted(reward for reward in data["raw_reward"] if not math.isnan(reward)) == [
        0.0,
        1.0,
        1.0,
    ]
    assert sum(map(sum, data["loss_masks"])) > 0
    for sample, scored, length in zip(
        samples, data["teacher_log_probs"], data["response_lengths"], strict=True
    ):
        assert len(scored) == length
        with torch.no_grad():
            expected = torch.log_softmax(
                model(torch.tensor([sample.tokens])).logits[0, -length - 1 : -1], -1
            )
        chosen = expected.gather(1, torch.tensor(sample.tokens[-length:])[:, None])[:, 0]
        assert scored == pytest.approx(chosen.tolist(), abs=1e-4)


def test_a_void_episode_without_tokens_has_an_untrained_one(args: Any) -> None:
    class Refusing(FakeMix):
        def episode(self, row: Any) -> Episode:
            def open_session() -> Any:
                raise EnvUnavailable("refused")

            return Episode(
                Task(row.env, row.split, row.index),
                open_session,
                NO_RETRY,
            )

    put_worker(args, worker_config(args.xp_root), Refusing(NO_RETRY), Kept())
    with engine(args, lambda _: []):
        (sample,) = play_group(args, group_of(ROW, 1))
    assert read_played(sample.metadata).outcome.status is EpisodeStatus.VOID
    assert sample.loss_mask == [0]
    assert sample.rollout_log_probs == [0.0]


def test_slimes_engine_sample_and_record_have_the_live_prompt(args: Any) -> None:
    mix = DrawnMix()
    kept = Kept()
    chat = ChatTokens(tokenizer_and_model()[0], chat_model())
    put_worker(
        args,
        worker_config(args.xp_root, sampling_of(400, 8, 40)),
        mix,
        kept,
    )
    args.rollout_stop = None
    with engine(args) as server:
        samples = play_group(args, group_of(ROW, len(DRAWN)))
    read = [sample.tokens[: len(sample.tokens) - sample.response_length] for sample in samples]
    check_drawn(
        mix.episodes,
        chat,
        read,
        [any(sample.loss_mask) and not sample.remove_sample for sample in samples],
    )
    prompts = [chat.prompt(episode.opening, ROW.tools) for episode in mix.episodes if episode.turns]
    assert all(
        any(body["input_ids"][: len(ids)] == ids for ids in prompts) for body in server.requests
    )
    openings = [list(episode.opening) for episode in mix.episodes]
    assert all(list(record.messages[:1]) in openings for record in kept.records)


def routed(args: Any, num_rows: int | None, response: list[int]) -> Any:
    """A sample with two tokens of prompt and the experts of `num_rows` tokens, filled."""
    import torch
    from slime.utils.types import Sample

    from xp.backends.slime.worker.rollout import _fill_experts

    args.num_layers = 3
    args.moe_router_topk = 2
    sample = Sample(
        index=0,
        tokens=[5, 6, *response],
        response_length=len(response),
    )
    sample.loss_mask = [int(token > 0) for token in response]
    if num_rows is not None:
        sample.rollout_routed_experts = torch.full(
            (num_rows, 3, 2),
            7,
            dtype=torch.int32,
        )
    _fill_experts(args, sample)
    return sample.rollout_routed_experts


def test_slime_takes_the_experts_of_an_episode_that_no_engine_wrote(args: Any) -> None:
    from slime.observability.rollout_data_utils import validate_rollout_routed_experts_for_replay

    untouched, whole, void = (
        routed(args, *case) for case in ((4, [8, 9, 4]), (3, [8, 9, 0]), (None, [0]))
    )
    assert [len(one) for one in (untouched, whole, void)] == [4, 4, 2]
    assert bool((untouched == 7).all())
    assert bool((whole[:3] == 7).all())
    assert whole[3].tolist() == [[0, 1]] * 3
    validate_rollout_routed_experts_for_replay([untouched, whole, void], args)


@pytest.mark.parametrize("num_rows", [None, 2])
def test_missing_experts_of_a_trained_token_end_the_run(num_rows: int | None, args: Any) -> None:
    with pytest.raises(XpError, match="the update needs those of 3") as caught:
        routed(args, num_rows, [8, 9, 0])
    assert caught.value.code is ExitCode.ENGINE
