"""Merges a directory of adapters into a whole model, for engines that need one."""

from __future__ import annotations

from pathlib import Path

from xp.backends.trl.worker.checkpoints import SEAL, broken
from xp.errors import ExitCode, XpError
from xp.worker.publish import check_there


def whole_model(directory: str, target: Path) -> str:
    """Directory with the whole model: this one, or for adapters, `target` with the merged model.

    Args:
        directory: directory of a trained model or a checkpoint, or a Hugging Face id.
        target: directory for a merged model.

    Raises:
        XpError: (RUN_DIR) the run has no such model, or it is damaged.
    """
    check_there(directory)
    if Path(directory, SEAL).is_file() and (fault := broken(Path(directory))) is not None:
        raise XpError(f"the checkpoint {directory} is damaged: {fault}", ExitCode.RUN_DIR)
    if Path(directory, "adapter_config.json").is_file():
        from peft import AutoPeftModelForCausalLM
        from transformers import AutoTokenizer

        model = AutoPeftModelForCausalLM.from_pretrained(directory, dtype="auto")
        model.merge_and_unload().save_pretrained(target)
        AutoTokenizer.from_pretrained(directory).save_pretrained(target)
        return str(target)
    return directory
