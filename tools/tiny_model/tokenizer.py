"""The tiny model's tokenizer: byte-level BPE trained on the spot, with Qwen's split, special tokens and template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

END: Final = "<|im_end|>"
PAD: Final = "<|endoftext|>"
SPECIAL: Final = (
    PAD,
    "<|im_start|>",
    END,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
SPLIT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""A token never reaches beyond a word, a digit or a run of punctuation."""
WORD_REPEATS: Final = 200
"""How often each word of the vocabulary is shown by itself, so that all of them become one token."""


@cache
def chat_template() -> str:
    """TRL's own copy of Qwen3-Instruct-2507's template: it only appends, and TRL knows it byte by byte."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / "qwen3_instruct_2507.jinja").read_text()


def train_tokenizer(texts: Sequence[str], words: Sequence[str], vocab_size: int) -> Any:
    """Train on rendered conversations.

    Args:
        texts: conversations as the chat template renders them.
        words: names that are to be one token each, at the beginning of a piece and after a space.
        vocab_size: upper bound, bytes and special tokens included.

    Returns:
        A `PreTrainedTokenizerFast`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pieces(texts, words), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    fast.chat_template = chat_template()
    return fast


def render(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
    """A conversation as text, before there is a tokenizer of its own."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [list(messages)], tools=list(tools), chat_template=chat_template()
    )
    text: str = rendered[0]
    return text


def _pieces(texts: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    special = re.compile("|".join(map(re.escape, SPECIAL)))
    for text in texts:
        yield from filter(None, special.split(text))
    for word in words:
        yield from [word, f" {word}"] * WORD_REPEATS
