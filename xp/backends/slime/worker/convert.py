"""Makes a Megatron checkpoint of a Hugging Face model: `python -m xp.backends.slime.worker.convert <config.json>`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from xp.backends.slime.worker import text_network
from xp.backends.slime.worker.checkpoints import TRACKER
from xp.backends.slime.worker.config import ConvertConfig
from xp.backends.slime.worker.models import check_architecture, local_model
from xp.backends.slime.worker.program import absolute_flags
from xp.backends.slime.worker.sources import open_sources
from xp.errors import ExitCode, XpError
from xp.lib.atomic import sync_directory, write_json
from xp.lib.reading import config_of
from xp.lib.verified import damaged, digests_below
from xp.worker.program import run_stage

PROGRAM = "tools/convert_hf_to_torch_dist.py"
MANIFEST = "manifest.json"


def main(argv: Sequence[str]) -> None:
    """Converts beside the target, then renames; the manifest, which marks the result as complete, has its digests."""
    config = config_of(Path(argv[0]), ConvertConfig.from_json)
    root = Path.cwd()
    target = Path(config.output_dir).absolute()
    check_architecture(local_model(config.manifest["model"], root), config.manifest["architecture"])
    staged = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        _convert(config, root, staged)
        if not (staged / TRACKER).is_file():
            raise XpError(f"{PROGRAM} ended without writing {TRACKER}", ExitCode.MISSING_OUTPUT)
        content = {**config.manifest, "files": digests_below(staged)}
        write_json(staged / MANIFEST, content)
        _take_name(staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _convert(config: ConvertConfig, root: Path, staged: Path) -> None:
    """Runs the tool, with one process per accelerator."""
    program = open_sources(config.command) / PROGRAM
    flags = absolute_flags(config.command.with_value("--save", str(staged)), root)
    torchrun = ("-m", "torch.distributed.run", "--standalone")
    module = (f"--nproc-per-node={config.num_processes}", "-m", text_network.__name__)
    code = subprocess.run(
        [sys.executable, *torchrun, *module, str(program), *flags],
        env={**os.environ, **config.command.environment},
        check=False,
    ).returncode
    if code:
        raise XpError(f"{PROGRAM} ended with {code}; the reason is above", ExitCode.STAGE_FAILED)


def _take_name(staged: Path, target: Path) -> None:
    """Renames the checkpoint; keeps a whole one that another run made meanwhile, replaces another one."""
    if (target / MANIFEST).is_file() and damaged(target / MANIFEST) is None:
        return
    if target.exists():
        shutil.rmtree(target)
    staged.rename(target)
    sync_directory(target.parent)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
