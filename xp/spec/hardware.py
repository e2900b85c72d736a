"""Accelerators: the cards of conf/accelerators.yaml, words for machines (`8xB200`), and what this machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Any, Final

from xp.errors import XpError, nearest
from xp.spec.section import conf_file

AUTO: Final = "auto"
_COUNT_FIRST = re.compile(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,3})x([a-z0-9].*)", re.IGNORECASE)
_CARD_FIRST = re.compile(r"([a-z].*[a-z0-9])x([1-9]\d{0,3})", re.IGNORECASE)
GB = 1e9
IN_A_FILE = (
    "describe another card in a file, DIR/hardware/NAME.yaml, with defaults: [_base, _self_], name, accelerator,"
    " accelerators_per_node, accelerator_memory_gb, num_cpus and memory_gb, and choose it by --config-dir DIR hardware=NAME"
)


@dataclass(frozen=True)
class Card:
    """One kind of accelerator."""

    name: str
    architecture: str
    memory_gb: float
    tflops: float
    """Dense bfloat16 (before Ampere: float16) with float32 accumulation, in TFLOP/s."""
    bandwidth_gb_s: float
    host: tuple[int, float]
    """CPU cores, and GB of the host's memory, for each card of the usual machine."""
    bf16: bool
    flash: bool
    """FlashAttention 2 runs on it."""
    names: tuple[str, ...] = ()
    """Further spellings."""
    pcie_gb_s: float = 16.0
    """PCIe in one direction; generation 3 where nothing is known."""
    link_gb_s: float | None = None
    """NVLink in one direction. None means that the card has PCIe alone."""


@dataclass(frozen=True)
class Machine:
    """Machines of one kind; the fields of a hardware option."""

    card: Card
    num_nodes: int
    per_node: int
    num_cpus: int
    memory_gb: float

    @property
    def name(self) -> str:
        """The word for them, `h100x8` or `2x8xh100`."""
        # a100x4 is the older word, of the cards with 80 GB.
        card = "a100" if self.card.name == "a100-80gb" else self.card.name
        if self.num_nodes == 1:
            return f"{card}x{self.per_node}"
        return f"{self.num_nodes}x{self.per_node}x{card}"

    def option(self) -> dict[str, Any]:
        """The contents of an option file with the package `_global_`; a card that cannot run the defaults changes
        them."""
        hardware = {
            "name": self.name,
            "accelerator": self.card.name,
            "accelerators_per_node": self.per_node,
            "accelerator_memory_gb": self.card.memory_gb,
            "num_nodes": self.num_nodes,
            "num_cpus": self.num_cpus,
            "memory_gb": self.memory_gb,
        }
        return {
            "defaults": ["_base@hardware", "_self_"],
            "hardware": hardware,
            **({} if self.card.bf16 else {"model": {"dtype": "float32"}}),
            **({} if self.card.flash else {"backend": {"attention": "sdpa"}}),
        }


@cache
def base_values(section: str) -> Mapping[str, Any]:
    """The values of conf/SECTION/_base.yaml, which a spec has where nobody sets others."""
    return conf_file(f"{section}/_base")


@cache
def cards() -> Mapping[str, Card]:
    """Name -> card, of the table."""
    features = conf_file("accelerators")["architectures"]
    return {
        name: Card(
            name=name, **{**features[card["architecture"]], **card, "host": tuple(card["host"])}
        )
        for name, card in conf_file("accelerators")["cards"].items()
    }


def machine_of(word: str) -> Machine | None:
    """The machines that a word names (`8xB200`, `h100x4`, `2x8xH100`, `rtx4090`). None means that the word has another
    form.

    Raises:
        XpError: the card is unknown, or no trainer runs on it.
    """
    spellings = {
        _letters(name): card for card in cards().values() for name in (card.name, *card.names)
    }
    spellings |= {
        name[3:]: card for name, card in spellings.items() if re.fullmatch(r"rtx\d+(ti)?", name)
    }
    if _letters(word) in spellings:
        num_nodes = 1
        per_node = 1
        text = word
    elif (parts := _COUNT_FIRST.fullmatch(word)) is not None:
        num_nodes = int(parts[1] or 1)
        per_node = int(parts[2])
        text = parts[3]
    elif (parts := _CARD_FIRST.fullmatch(word)) is not None:
        num_nodes = 1
        per_node = int(parts[2])
        text = parts[1]
    else:
        return None
    refused: Mapping[str, str] = conf_file("accelerators")["refused"]
    reason = refused.get(_letters(text))
    if reason is not None:
        raise XpError(f"hardware={word}: {reason}")
    card = spellings.get(_letters(text))
    if card is None:
        known = ", ".join(cards())
        raise XpError(
            f"hardware={word}: unknown card{nearest(text.lower(), list(spellings))}; known: {known}; {IN_A_FILE}"
        )
    num_cpus, memory_gb = card.host
    return Machine(card, num_nodes, per_node, num_cpus * per_node, memory_gb * per_node)


def this_machine() -> Machine | None:
    """The GPUs that a job may use here, with this machine's cores and memory, or those of its Slurm allocation. None
    means that nvidia-smi shows no GPU.

    Raises:
        XpError: the GPUs differ.
    """
    import psutil

    visible = set(visible_gpus())
    gpus = gpu_cells("index", "uuid", "name", "memory.total", "compute_cap")
    gpus = [gpu for gpu in gpus if visible & {gpu[0], gpu[1]}]
    if not gpus:
        return None
    kinds = sorted({gpu[2] for gpu in gpus})
    if len(kinds) > 1:
        raise XpError(
            f"hardware={AUTO}: this machine has different GPUs, {' and '.join(kinds)}; choose by CUDA_VISIBLE_DEVICES,"
            " or name the machine, as in hardware=1xRTX4090"
        )
    host_gb = psutil.virtual_memory().total / GB
    limit_mib = os.environ.get("SLURM_MEM_PER_NODE", "")
    if limit_mib.isdigit():
        host_gb = min(host_gb, float(limit_mib) * 1024**2 / GB)
    return Machine(
        _card_here(*gpus[0][2:]),
        num_nodes=int(os.environ.get("SLURM_JOB_NUM_NODES", "1")),
        per_node=len(gpus),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_gb=float(int(host_gb)),
    )


def _card_here(name: str, memory_mib: str, capability: str) -> Card:
    """The card that nvidia-smi shows; of one that the table lacks, what its compute capability says.

    Raises:
        XpError: the card is older than Turing.
    """
    memory_gb = round(float(memory_mib) / 1024, 1) if memory_mib.isdigit() else 0.0
    version = tuple(int(part) for part in re.findall(r"\d+", capability))
    if () < version < (7, 5):
        raise XpError(
            f"hardware={AUTO}: this machine has {name}; the trainers' packages need Turing or newer"
        )
    card = card_named(name, memory_gb)
    if card is None:
        short = _letters(re.sub(r"nvidia|geforce|tesla", "", name, flags=re.IGNORECASE))
        is_ampere = version >= (8, 0)
        return Card(short, "unknown", memory_gb, 0, 0, (1, 1), bf16=is_ampere, flash=is_ampere)
    # nvidia-smi counts a little more than the name says; another figure is another variant of the card.
    is_nominal = abs(memory_gb / card.memory_gb - 1) < 0.15
    if is_nominal or not memory_gb:
        return card
    return replace(card, memory_gb=memory_gb)


def card_named(name: str, memory_gb: float) -> Card | None:
    """The card of a name that nvidia-smi shows, such as `NVIDIA A100-SXM4-80GB`. None means that the table has none.

    Args:
        memory_gb: its memory, which tells cards of one name apart.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    fits = []
    for card in cards().values():
        short = _letters(card.name.partition("-")[0])
        if short in words or (len(short) > 6 and short in _letters(name)):
            fits.append(card)
    # Of several, the one whose further words the name has, then the longest name, then the nearest memory.
    return min(
        fits,
        key=lambda card: (
            -sum(part in words for part in card.name.split("-")),
            -len(card.name.partition("-")[0]),
            abs(card.memory_gb - memory_gb),
        ),
        default=None,
    )


def _letters(text: str) -> str:
    """A name without signs and in lower case, since `RTX 4090` has many spellings."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def visible_gpus() -> list[str]:
    """GPUs that a job may use on this machine, those with the least used memory first."""
    used = {
        name: int(memory) if memory.isdigit() else 0
        for name, memory in gpu_cells("index", "memory.used")
    }
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return sorted(used, key=used.__getitem__)
    # CUDA ignores the list from the first number on that no GPU has, such as -1.
    listed = (part.strip() for part in allowed.split(","))
    names = takewhile(lambda name: name in used or name.startswith(("GPU-", "MIG-")), listed)
    return sorted(names, key=lambda name: used.get(name, 0))


def gpu_cells(*columns: str) -> list[list[str]]:
    """Cells of each GPU that nvidia-smi shows; none without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        [cell.strip() for cell in line.split(",")]
        for line in run.stdout.splitlines()
        if "," in line
    ]
