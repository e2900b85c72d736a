"""Templates in the shapes of further public models, written here: where their turns end, and how results come back."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.chat_templates import small_tokenizer, tokenizer_of
from tests.support.fake_session import RULES, TASK, FakeSession, call, steady
from tests.support.sections import replace, sampling_of
from tests.support.tables import rows
from tests.support.tool_results import BY_XP, RESULTS
from xp.envs.base import Message
from xp.envs.messages import chat_messages
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.spec import DType
from xp.tasks.config import Purpose
from xp.tasks.load import within_limit
from xp.tasks.row import TaskRow
from xp.tasks.template_check import PROBE_TOOLS, examine, examine_prompts
from xp.worker.token_budget import reply_ids

TOOLS = "{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}"
NEXT = "{% if add_generation_prompt %}<|start|>assistant{% endif %}"


SHAPES = {
    name: ("".join([first, *lines]).replace("␊", "\n"), eos, {*ends.split()})
    for section, first, lines in (one.values for one in rows("turn_ends"))
    for name, eos, ends in [section.split(" | ")]
}
"""Name -> template, the tokenizer's end-of-text token, and the tokens that end a turn."""


def tokens(shape: str) -> ChatTokens:
    template, eos, _ = SHAPES[shape]
    extra = (
        ("<|user|>", "<|tool|>", "<|assistant|>", "<|system|>")
        if shape == "no end of its own"
        else ()
    )
    return ChatTokens(small_tokenizer(TOOLS + template, eos, extra))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_turn_ends_after_its_tokens_and_not_within_them(shape: str) -> None:
    chat = tokens(shape)
    assert set(chat.ends.texts) == SHAPES[shape][2]
    assert examine(chat).faults == ()


def refusing(what: str) -> ChatTokens:
    """Refuses messages with a word in them."""
    template = (
        f"{TOOLS}{{% for m in messages %}}{{% if '{what}' in m.content %}}{{{{ raise_exception('no {what}') }}}}"
        f"{{% endif %}}<|start|>{{{{ m.role }}}} {{{{ m.content }}}}<|stop|>{{% endfor %}}{NEXT}"
    )
    return ChatTokens(small_tokenizer(template, "<|stop|>"))


def test_a_reply_refused_by_the_template_makes_the_episode_void() -> None:
    chat = refusing("moved after 0")
    episode = Episode(TASK, lambda: FakeSession(steady), RULES)
    assert reply_ids(chat, episode, episode.step(call("move")), 10_000, None) is None
    outcome = episode.settle()
    assert (outcome.status, outcome.reward) == (EpisodeStatus.VOID, None)
    assert "does not render a dialogue: TemplateError: no moved after 0" in str(outcome.void_reason)


def test_a_prompt_that_the_template_refuses_is_named_before_the_first_episode(
    tmp_path: Path,
) -> None:
    messages = (Message(role="user", content="war"),)
    row = TaskRow(
        "a/train/3",
        "a",
        Purpose.TRAIN,
        "train",
        3,
        "0" * 64,
        messages,
        "[]",
        1.0,
    )
    words = r"task a/train/3: the model's chat template .*TemplateError: no war"
    with pytest.raises(XpError, match=words) as caught:
        within_limit(tmp_path / "set", [row], refusing("war"), 1000)
    assert caught.value.code is ExitCode.PLAN


def prompt_with_calls() -> list[Message]:
    function: dict[str, Any] = {"name": "look_around", "arguments": {"which_room": "attic"}}
    return chat_messages(
        [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "function": function}],
            },
            {"role": "tool", "content": "Dust.", "name": "look_around"},
            {"role": "user", "content": "And now?"},
        ]
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_earlier_calls_of_a_prompt_reach_the_model(shape: str) -> None:
    chat = tokens(shape)
    tools = json.dumps(PROBE_TOOLS)
    text = chat.rendered(prompt_with_calls(), tools)
    assert text.index("Look.") < text.rindex("attic") < text.index("Dust.") < text.index("And now?")
    assert examine_prompts(chat, [(prompt_with_calls(), tools)]).faults == ()


def test_a_template_that_drops_earlier_calls_is_refused_with_the_way_out() -> None:
    (fault,) = examine_prompts(
        refusing("nothing"), [(prompt_with_calls(), json.dumps(PROBE_TOOLS))]
    ).faults
    assert (
        "does not render the earlier tool calls of a prompt; set model.tools_prompt=system" in fault
    )


@pytest.mark.parametrize(("name", "is_lost"), [("gptoss", True), ("qwen3", False)])
def test_two_earlier_calls_in_a_turn_are_not_lost_without_a_word(name: str, is_lost: bool) -> None:
    """gpt-oss' template renders the first call of a turn alone, and gives its name to both results."""
    prompt = prompt_with_calls()
    calls = [{"function": tool["function"] | {"arguments": {}}} for tool in PROBE_TOOLS]
    spoken = {"role": "assistant", "tool_calls": calls}
    both = chat_messages([prompt[0], spoken, *RESULTS, prompt[-1]])
    prompts = [(prompt, json.dumps(PROBE_TOOLS)), (both, json.dumps(PROBE_TOOLS))]
    chat = ChatTokens(tokenizer_of(name))
    assert examine_prompts(chat, prompts[:1]).faults == ()
    faults = examine_prompts(chat, prompts).faults
    assert ["does not render the earlier tool calls" in fault for fault in faults] == [
        True
    ] * is_lost
    assert examine_prompts(ChatTokens(tokenizer_of(name), BY_XP), prompts[1:]).faults == ()


@pytest.mark.parametrize("is_sharded", [False, True])
def test_generate_of_a_published_model_ends_where_a_turn_ended_in_training(
    is_sharded: bool, tmp_path: Path
) -> None:
    """A base model's own end is `<|endoftext|>`; its chat template ends a turn with `<|im_end|>`."""
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM, LogitsProcessorList

    from tests.support.tiny import tokenizer_and_model
    from xp.backends.trl.worker.policy import publish_policy
    from xp.backends.trl.worker.process import Ranks

    tokenizer, model = copy.deepcopy(tokenizer_and_model())
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.name_or_path = ""
    model.generation_config.eos_token_id = model.config.eos_token_id = 0
    trainer = SimpleNamespace(
        is_fsdp_enabled=is_sharded, accelerator=Accelerator(cpu=True), model=model
    )
    policy: Any = SimpleNamespace(dtype=DType.FLOAT32, train_vision=False)
    publish_policy(trainer, ChatTokens(tokenizer), tmp_path / "model", policy, Ranks(), "none")
    published = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    prompt = torch.tensor([[10, 11]])
    for end in ChatTokens(tokenizer).end_ids:
        wanted = LogitsProcessorList(
            [lambda _, scores, end=end: torch.eye(scores.shape[-1])[[end]] * 1e9]
        )
        assert published.generate(prompt, max_new_tokens=5, logits_processor=wanted)[
            0, 2:
        ].tolist() == [end]
    tokenizer.name_or_path = str(tmp_path / "model")
    assert ChatTokens(tokenizer).end_ids == (2, 0)


def test_decoding_stops_at_every_end_and_graders_see_none(tmp_path: Path) -> None:
    """Phi-3.5 ends a turn with `<|end|>`, while its tokenizer's end-of-text token is `<|endoftext|>`."""
    from tests.support.scripts import ROW, FakeMix, under_trls_engine
    from tests.support.tiny import ScriptedModel

    tokenizer = tokenizer_of("phi3_5", tmp_path)
    chat = ChatTokens(tokenizer)
    mix = FakeMix(replace(RULES, provider="local"))
    marks = [
        tokenizer.convert_tokens_to_ids(text)
        for text in ("<|end|>", "<|assistant|>", "<|endoftext|>")
    ]
    ids = chat.prompt(ROW.messages, ROW.tools)
    own = list[int]()
    for text, mark, said in zip(
        "375",
        marks,
        ("higher", "lower", None),
        strict=True,
    ):
        turn = [*tokenizer(text, add_special_tokens=False)["input_ids"], mark]
        own += turn
        more = (
            [] if said is None else chat.reply([Message(role="user", content=said)], last_id=mark)
        )
        ids += [*turn, *more]
    ids += tokenizer("more", add_special_tokens=False)["input_ids"]
    sampling = sampling_of(200, 100, 800, temperature=0.0)
    (rollout,) = under_trls_engine(ScriptedModel(ids, len(tokenizer)), chat, mix, sampling)
    assert [turn.text for turn in rollout.record.episode.turns] == ["3", "7", "5"]
    assert rollout.outcome.status is EpisodeStatus.FINISHED
    conversation = rollout.conversation
    pairs = zip(conversation.completion_ids, conversation.mask, strict=True)
    assert [token for token, mask in pairs if mask] == own
    whole = tokenizer.decode(conversation.completion_ids)
    assert whole == (
        "3<|end|>\n<|user|>\nhigher<|end|>\n<|assistant|>\n"
        "7<|assistant|>\n<|user|>\nlower<|end|>\n<|assistant|>\n5<|endoftext|>"
    )
