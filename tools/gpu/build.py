"""Packs the project and its packages for a machine without a network, in files of a limited size.

    python -m tools.gpu.build DEST [--skyrl] [--installed FREEZE] [--model GGUF] [--piece-mb 50] [--quick]

The versions are those of runtimes/skyrl/requirements.lock, whose vLLM both trainers then use, with TRL's own packages
from runtimes/trl/requirements.lock; requirements/demo.lock adds what the command line needs. FREEZE lists what the
other machine has, as `pip freeze` prints it: such packages stay out, whatever their version if the list has none.
LEFT_OUT stays out too, and GPU code of other architectures than --arch is removed from vLLM's libraries. A part that is
unchanged since the last call is not made again; the project is packed as its tracked files lie here.

On the other machine, in a folder with all files of DEST/pieces:

    python3 unpack.py && export PYTHONPATH=$PWD/trl:$PWD/site     # for SkyRL: PYTHONPATH=$PWD/site
    cd project && python3 -m tools.gpu.models && python3 -m tools.gpu size
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tools.gpu.prune import prune
from tools.gpu.unpack import PARTS
from xp.planning.runtimes import LOCKS, locks, versions_in

OF_TRL = ("trl", "transformers", "huggingface-hub", "peft")
"""Packages of which TRL's lock has another version than SkyRL's, in a folder of their own."""
OF_COMMAND_LINE = (
    "hydra-core",
    "omegaconf",
    "antlr4-python3-runtime",
    "argcomplete",
    "python-dotenv",
    "httptools",
)
OF_MODELS = {"gguf": "0.19.0"}
"""Reads the file of --model."""
LEFT_OUT = {
    "of the machine's own PyTorch": "torch torchvision torchaudio torchcodec triton nvidia- cuda- nvtx nccl4py",
    "other samplers, and kernels of other GPUs, latent attention, Mamba and mixtures": (
        "flashinfer- quack-kernels tilelang tokenspeed- humming-kernels flash-attn flash-linear-attention fla-core"
        " z3-solver torch-c-dlpack-ext"
    ),
    "images, videos, weights of four bits, other ways to load": (
        "opencv- pynvvideocodec bitsandbytes fastsafetensors instanttensor nixl nixl-"
    ),
    "trackers, stores and debuggers": (
        "wandb tensorboard tensorboard- s3fs s5cmd gcsfs google-api- google-cloud- google-crc32c google-resumable-"
        " grpc-google- grpcio-status aiobotocore aioitertools botocore polars polars- debugpy requests-oauthlib"
    ),
}
"""Reason -> names, and beginnings of names that end in `-`, which a dense model on one GPU does without."""
UNUSED = {
    # FlashAttention 2 (these GPUs take 3), latent attention, FP8 matrices of mixtures, the server in Rust.
    "vllm": ("vllm_flash_attn/_vllm_fa2_C*", "_flashmla_C*", "third_party/deep_gemm", "vllm-rs"),
    "ray": ("jars", "dashboard/client", "rllib", "serve", "tune", "train", "data", "llm"),
    "pycountry": ("locales",),
    "xgrammar": ("include", "lib"),
}
"""Package -> its files that no dense model on one GPU uses."""


def wanted(freeze: str, *, has_skyrl: bool) -> dict[str, dict[str, str]]:
    """Folder -> package -> version."""
    there = dict(re.findall(r"^([A-Za-z0-9_.-]+)(?:==(\S+))?", freeze, re.MULTILINE))
    there = {
        name.lower().replace("_", "-").replace(".", "-"): version for name, version in there.items()
    }
    skyrl = locks()["skyrl"].versions()
    trl = locks()["trl"].versions()
    demo = versions_in([LOCKS.parent / "requirements/demo.lock"])
    site = {name: version for name, version in skyrl.items() if has_skyrl or name in trl}
    site |= {name: demo[name] for name in OF_COMMAND_LINE if name in demo} | OF_MODELS
    folders = {"site": site, "trl": {name: trl[name] for name in OF_TRL}}

    def is_needed(name: str, version: str) -> bool:
        left_out = " ".join(LEFT_OUT.values()).split()
        if any(name.startswith(one) if one.endswith("-") else name == one for one in left_out):
            return False
        return name not in there or there[name] not in ("", version)

    return {
        folder: {name: version for name, version in packages.items() if is_needed(name, version)}
        for folder, packages in folders.items()
    }


def install(packages: Mapping[str, str], target: Path, python: str) -> None:
    """Installs wheels for another Python on Linux, without their dependencies."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)] + [
        "manylinux2014_x86_64"
    ]
    # Before it installs, pip compares a package's Python with its own.
    words = [
        "--no-deps",
        "--no-compile",
        "--ignore-requires-python",
        "--python-version",
        python,
        "--target",
        str(target),
    ]
    words += [word for platform in platforms for word in ("--platform", platform)]
    listed = [f"{name}=={version}" for name, version in sorted(packages.items())]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *words, *listed], check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)


def trim(site: Path, arch: int) -> None:
    """Removes what UNUSED names, symbols for debuggers, and GPU code of other architectures from vLLM's libraries."""
    for package, patterns in UNUSED.items():
        for path in (path for pattern in patterns for path in (site / package).glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for library in (site / "vllm").rglob("*.so"):
        pruned = library.with_suffix(".pruned")
        kept, removed = prune(library, pruned, arch)
        pruned.replace(library)
        print(
            f"{library.relative_to(site)}: {kept >> 20} MiB of GPU code kept, {removed >> 20} removed",
            flush=True,
        )
    symbols = [
        *site.glob("ray/_raylet.so"),
        *site.glob("ray/core/src/ray/*/*"),
        *site.glob("xgrammar/*.so"),
    ]
    programs = [file for file in symbols if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"]
    subprocess.run(["strip", *map(str, programs)], check=True)


def pack(files: Iterable[tuple[str, Path]], target: Path, preset: str) -> None:
    """A compressed archive that depends on names and contents alone."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with target.open("wb") as out:
        xz = subprocess.Popen(["xz", "-T0", preset], stdin=subprocess.PIPE, stdout=out)
        assert xz.stdin is not None
        with tarfile.open(fileobj=xz.stdin, mode="w|") as tar:
            for name, path in sorted(files):
                tar.add(path, name, recursive=False, filter=plain)
        xz.stdin.close()
        if xz.wait():
            raise SystemExit("xz has failed")


def below(folder: Path) -> list[tuple[str, Path]]:
    """All files of a folder, with their names in it."""
    return [
        (str(path.relative_to(folder)), path) for path in folder.rglob("*") if not path.is_dir()
    ]


def split(parts: Mapping[str, tuple[Path, str]], target: Path, limit: int) -> None:
    """Cuts the parts into pieces of at most this number of bytes, with parts.json and unpack.py beside them.

    Args:
        parts: name -> its file, and the folder that it goes into.
        target: folder of the pieces, which is emptied.
        limit: largest size of a piece.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    index = {}
    for name, (file, into) in parts.items():
        data = file.read_bytes()
        size = max(1, math.ceil(len(data) / math.ceil(len(data) / limit)))
        pieces = [f"{name}.{number}" for number in range(math.ceil(len(data) / size))]
        for number, piece in enumerate(pieces):
            (target / piece).write_bytes(data[number * size : (number + 1) * size])
        index[name] = {"into": into, "sha256": hashlib.sha256(data).hexdigest(), "pieces": pieces}
    (target / PARTS).write_text(json.dumps(index, indent=1) + "\n")
    shutil.copy(Path(__file__).with_name("unpack.py"), target)


def main(argv: Sequence[str]) -> None:
    """Make the parts that have changed, and the pieces."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dest", type=Path)
    parser.add_argument("--skyrl", action="store_true", help="SkyRL too")
    parser.add_argument("--installed", type=Path, help="list of the other machine's packages")
    parser.add_argument(
        "--model",
        type=Path,
        help="GGUF file of a model; tools.gpu.models makes its directory there",
    )
    parser.add_argument("--python", default="3.12", help="the other machine's Python")
    parser.add_argument(
        "--arch", type=int, default=90, help="its GPU: 90 is sm_90, of an H100 or H200"
    )
    parser.add_argument("--piece-mb", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="compress less, to try the script")
    options = parser.parse_args(argv)
    options.dest.mkdir(parents=True, exist_ok=True)
    if options.installed:
        freeze = options.installed.read_text()
    else:
        freeze = ""
    parts = {}
    preset = "-0" if options.quick else "-6"
    for folder, packages in wanted(freeze, has_skyrl=options.skyrl).items():
        text = f"{sorted(packages.items())} {options.python} {options.arch} {UNUSED}"
        file = options.dest / f"{folder}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.tar.xz"
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=options.dest) as work:
                install(packages, Path(work) / folder, options.python)
                if folder == "site":
                    trim(Path(work) / folder, options.arch)
                pack(below(Path(work) / folder), Path(work) / "packed", preset)
                os.replace(Path(work) / "packed", file)
        parts[f"{folder}.tar.xz"] = file, folder
        print(f"{folder}: {len(packages)} packages, {file.stat().st_size / 1e6:.0f} MB", flush=True)
    tracked = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    project = options.dest / "project.tar.xz"
    pack([(name, Path(name)) for name in tracked if Path(name).exists()], project, preset)
    parts["project.tar.xz"] = project, "project"
    if options.model is not None:
        parts[options.model.name] = options.model, "project/models/gguf"
    split(parts, options.dest / "pieces", options.piece_mb * 1_000_000)
    pieces = sorted((options.dest / "pieces").iterdir())
    print(
        f"{len(pieces)} files, {sum(file.stat().st_size for file in pieces) / 1e6:.0f} MB, in {options.dest / 'pieces'}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
