"""Makes a Megatron checkpoint of a Hugging Face model: `python -m xp.backends.slime.worker.convert <config.json>`."""

from __future__ import annotations

import os
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
from xp.lib.atomic import write_json
from xp.lib.reading import config_of
from xp.lib.verified import damaged, digests_below
from xp.worker.program import run_stage
from xp.worker.publish import made_beside, take_name

PROGRAM = "tools/convert_hf_to_torch_dist.py"
MANIFEST = "manifest.json"


def main(argv: Sequence[str]) -> None:
    """Converts beside the target, then renames; the manifest, which marks the result as complete, has its digests."""
    config = config_of(Path(argv[0]), ConvertConfig.from_json)
    root = Path.cwd()
    target = Path(config.output_dir).absolute()
    check_architecture(local_model(config.manifest["model"], root), config.manifest["architecture"])
    with made_beside(target) as staged:
        _convert(config, root, staged)
        if not (staged / TRACKER).is_file():
            raise XpError(f"{PROGRAM} ended without writing {TRACKER}", ExitCode.MISSING_OUTPUT)
        content = {**config.manifest, "files": digests_below(staged)}
        manifest = target / MANIFEST
        write_json(staged / MANIFEST, content)
        take_name(staged, target, lambda: manifest.is_file() and damaged(manifest) is None)


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


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
