"""Merges a directory of adapters into a whole model, for engines that take nothing else."""

from __future__ import annotations

from pathlib import Path

from xp.errors import ExitCode, XpError


def whole_model(directory: str, target: Path) -> str:
    """A directory with the whole model: this one, or where it holds adapters, `target` with them merged in.

    Args:
        directory: of a trained model, of a checkpoint, or a Hugging Face id.

    Raises:
        XpError: (RUN_DIR) the run has no such model.
    """
    if Path(directory, "adapter_config.json").is_file():
        from peft import AutoPeftModelForCausalLM
        from transformers import AutoTokenizer

        model = AutoPeftModelForCausalLM.from_pretrained(directory, dtype="auto")
        model.merge_and_unload().save_pretrained(target)
        AutoTokenizer.from_pretrained(directory).save_pretrained(target)
        return str(target)
    check_there(directory)
    return directory


def check_there(directory: str) -> None:
    """Raise XpError(RUN_DIR) where a run's directory holds neither a model nor adapters."""
    files = ("config.json", "adapter_config.json")
    if directory.startswith("runs/") and not any(Path(directory, name).is_file() for name in files):
        raise XpError(f"there is no model at {directory}; did the run get that far?", ExitCode.RUN_DIR)
