"""The chat templates that TRL ships, with what the models' publishers say of them; and a small tokenizer for each.

The table was filled in by hand: `eos` from tokenizer_config.json, `named` from generation_config.json, `ends` and
`verdict` from the publisher's page and the template's own text. Where a file was not seen, the source says so.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.tiny import tokenizer_and_model


class Shows(StrEnum):
    """What a template makes of a dialogue with tools."""

    CALLS = "tools and results"
    RESULTS = "results, each with the name of its tool"
    NO_TOOLS = "no tools"
    NO_SYSTEM = "no system message"


@dataclass(frozen=True)
class Published:
    """A model as its publisher describes it."""

    eos: str
    named: tuple[str, ...]
    """Tokens of `generation_config.eos_token_id`; none: not seen."""
    ends: tuple[str, ...]
    """All tokens that end a turn."""
    shows: Shows
    source: str


IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
EOT = "<|eot_id|>"
EOM = "<|eom_id|>"
SENTENCE = "<｜end▁of▁sentence｜>"
RETURN = "<|return|>"
CALL = "<|call|>"
COHERE = "<|END_OF_TURN_TOKEN|>"
RESPONSE = "<|END_RESPONSE|>"
TURN = "<turn|>"
TOOL = "<|tool_response>"
PHI = ("<|end|>", "<|assistant|>", END_OF_TEXT)


def qwen(shows: Shows, source: str) -> Published:
    return Published(IM_END, (IM_END, END_OF_TEXT), (IM_END, END_OF_TEXT), shows, source)


def gemma_4(shows: Shows = Shows.RESULTS) -> Published:
    return Published(
        "<eos>",
        ("<eos>", TURN, TOOL),
        ("<eos>", TURN, TOOL),
        shows,
        "google/gemma-4-E2B-it: [1, 106, 50]",
    )


def llama(shows: Shows, *further: str, source: str) -> Published:
    return Published(
        EOT, (EOT, "<|end_of_text|>", *further), (EOT, "<|end_of_text|>", *further), shows, source
    )


NEMOTRON = Published(
    IM_END, ("</s>", IM_END), ("</s>", IM_END), Shows.CALLS, "nvidia/NVIDIA-Nemotron-3-*: [2, 11]"
)
LFM = Published(IM_END, (IM_END,), (IM_END,), Shows.CALLS, "LiquidAI/LFM2-*: 7")
PARTS = Published(
    "<end_of_utterance>",
    (),
    ("<end_of_utterance>",),
    Shows.NO_TOOLS,
    "not seen; its messages are lists of parts",
)

MODELS = {
    "cohere": Published(
        COHERE, (COHERE,), (COHERE,), Shows.NO_TOOLS, "CohereLabs/aya-expanse-8b: 255001"
    ),
    "cohere2": Published(
        COHERE, (COHERE,), (RESPONSE, COHERE), Shows.NO_TOOLS, "CohereLabs/tiny-aya-earth: 255001"
    ),
    "deepseek_r1_distill": Published(
        SENTENCE, (SENTENCE,), (SENTENCE,), Shows.NO_TOOLS, "DeepSeek-R1-Distill: 151643"
    ),
    "deepseekv3": Published(
        SENTENCE, (SENTENCE,), (SENTENCE,), Shows.NO_TOOLS, "deepseek-ai/DeepSeek-V3: 1"
    ),
    "diffusion_gemma": gemma_4(),
    "gemma": Published(
        "<eos>", ("<eos>",), ("<eos>", "<end_of_turn>"), Shows.NO_SYSTEM, "google/gemma-1.1-*-it: 1"
    ),
    "gemma3": Published(
        "<eos>",
        ("<eos>", "<end_of_turn>"),
        ("<eos>", "<end_of_turn>"),
        Shows.NO_TOOLS,
        "google/gemma-3-*-it: [1, 106]",
    ),
    "gemma4": gemma_4(),
    "gemma4_v2": gemma_4(Shows.CALLS),
    "gemma4_v3": gemma_4(),
    "gemma4_v4": gemma_4(),
    "gemma4_v5": gemma_4(),
    "glm4moe": Published(
        END_OF_TEXT,
        (END_OF_TEXT, "<|user|>", "<|observation|>"),
        (END_OF_TEXT, "<|user|>", "<|observation|>"),
        Shows.CALLS,
        "zai-org/GLM-4.5: [151329, 151336, 151338]",
    ),
    "gptoss": Published(
        RETURN,
        (RETURN, END_OF_TEXT, CALL),
        (RETURN, END_OF_TEXT, CALL),
        Shows.RESULTS,
        "openai/gpt-oss-20b: [200002, 199999, 200012]; <|end|> ends a message, and the turn goes on",
    ),
    "idefics3": PARTS,
    "lfm2": LFM,
    "lfm2_2_5": LFM,
    "lfm2_2_5_v2": LFM,
    "lfm2_2_5_vl": LFM,
    "lfm2_v2": LFM,
    "llama3": llama(Shows.NO_TOOLS, source="meta-llama/Meta-Llama-3-8B-Instruct: [128001, 128009]"),
    "llama3_1": llama(
        Shows.CALLS, EOM, source="meta-llama/Llama-3.1-8B-Instruct: [128001, 128008, 128009]"
    ),
    "llama3_2": llama(
        Shows.CALLS, EOM, source="meta-llama/Llama-3.2-3B-Instruct: [128001, 128008, 128009]"
    ),
    "llava_next": Published(
        "</s>", ("</s>",), ("</s>",), Shows.NO_TOOLS, "its messages are lists of parts"
    ),
    "muse_glimmer": Published(
        "<|eot|>", (), ("<|eot|>",), Shows.RESULTS, "not seen; <|eom|> ends a part of a turn"
    ),
    "nemotron_3_5_lightning": NEMOTRON,
    "nemotron_3_nano": NEMOTRON,
    "nemotron_3_super": NEMOTRON,
    "nemotron_3_ultra": NEMOTRON,
    "phi3": Published(
        END_OF_TEXT, PHI, PHI, Shows.NO_TOOLS, "microsoft/Phi-3-mini-4k: [32000, 32001, 32007]"
    ),
    "phi3_5": Published(
        END_OF_TEXT, PHI, PHI, Shows.NO_TOOLS, "microsoft/Phi-3.5-mini: [32007, 32001, 32000]"
    ),
    "qwen2_5": qwen(Shows.CALLS, "Qwen/Qwen2.5-*-Instruct: [151645, 151643]"),
    "qwen2_5_vl": qwen(Shows.NO_TOOLS, "Qwen/Qwen2.5-VL-*: [151645, 151643]"),
    "qwen3": qwen(Shows.CALLS, "Qwen/Qwen3-*: [151645, 151643]"),
    "qwen3_5_nothink": qwen(Shows.CALLS, "Qwen/Qwen3.5-*: [248046, 248044]"),
    "qwen3_5_think": qwen(Shows.CALLS, "Qwen/Qwen3.5-*: [248046, 248044]"),
    "qwen3_6": qwen(Shows.CALLS, "not seen; as Qwen3.5"),
    "qwen3_8": qwen(Shows.CALLS, "not seen; as Qwen3.5"),
    "qwen3_instruct_2507": qwen(Shows.CALLS, "Qwen/Qwen3-*-Instruct-2507: [151645, 151643]"),
    "qwen3_vl": qwen(Shows.CALLS, "Qwen/Qwen3-VL-*: [151645, 151643]"),
    "smolvlm": PARTS,
}
_SPECIAL = re.compile(
    r"<\|[^<>|\s]+\|?>|<[a-z_]+\|>|<｜[^｜]+｜>|\[/?[A-Z_]+\]|</?(?:s|eos|bos)>|<[a-z_]+_of_turn>"
)


@cache
def folder() -> Path:
    import trl

    return Path(trl.__file__).parent / "chat_templates"


def shipped() -> set[str]:
    """Names of the templates of models; TRL's own variants for training are not a model's."""
    return {path.stem for path in folder().glob("*.jinja") if not path.stem.endswith("_training")}


def tokenizer_of(name: str, place: Path | None = None, *, eos: str | None = None) -> Any:
    """A tokenizer with a model's template and tokens.

    Args:
        place: directory that gets the model's generation_config.json; None: the model has none.
        eos: another end-of-text token than the model's.
    """
    model = MODELS[name]
    found = small_tokenizer(
        (folder() / f"{name}.jinja").read_text(),
        eos or model.eos,
        model.named,
    )
    if place is not None and model.named:
        named_by(found, place, model.named)
    return found


def named_by(tokenizer: Any, place: Path, tokens: tuple[str, ...]) -> None:
    """Puts the tokens into a generation_config.json beside the tokenizer."""
    ids = tokenizer.convert_tokens_to_ids(list(tokens))
    (place / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ids if len(ids) > 1 else ids[0]})
    )
    tokenizer.name_or_path = str(place)


def small_tokenizer(template: str, eos: str, further: tuple[str, ...] = ()) -> Any:
    """A tokenizer of bytes, with the special tokens that occur in the template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {
        letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    inner = Tokenizer(models.BPE(vocab=letters, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = sorted({*_SPECIAL.findall(template), *further, eos, "<s>"})
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=eos, bos_token="<s>", additional_special_tokens=special
    )
    tokenizer.chat_template = template
    return tokenizer


def tokenizer_with(template: str) -> Any:
    import trl

    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    tokenizer.chat_template = (
        Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja"
    ).read_text()
    return tokenizer
