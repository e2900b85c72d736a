"""Which checkpoints public scripts train, and what each trainer does with them, for docs/models.md and its tests.

python -m tools.checkpoints count SkyRL=DIR slime=DIR ...    # counts the scripts of checkouts
python -m tools.checkpoints engines VLLM_DIR SGLANG_DIR      # looks for their classes in the installed packages
python -m tools.checkpoints sizes                            # parameters, by the classes of transformers
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from xp.composition import compose
from xp.errors import XpError
from xp.fields.field import Refusal
from xp.fields.message_limits import with_proof
from xp.lib.models.files import known_config
from xp.lib.models.network import network_of, text_part
from xp.lib.models.weights import media_parameters
from xp.planning.backend import spec_refusals
from xp.planning.memory.estimate import capacity_of, estimate
from xp.planning.memory.fit import MemoryVerdict, fit, impossible_by, memory_refusals, works
from xp.planning.memory.weights import weights_of
from xp.planning.refusals import machine_refusals
from xp.planning.size_refusals import size_refusals
from xp.spec import Architecture, RunSpec

ROOT: Final = Path(__file__).parents[1]
DATA: Final = Path(__file__).parent / "published_models"
CHECKPOINTS: Final = DATA / "checkpoints.yaml"
COUNTS: Final = DATA / "counts.json"
ENGINES: Final = DATA / "engines.json"
SIZES: Final = DATA / "sizes.json"
TABLE: Final = ROOT / "xp/lib/models/known_models.json"

REPOSITORIES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "verl": ("volcengine/verl", ("examples", "recipe")),
    "SkyRL": ("NovaSky-AI/SkyRL", ("examples", "integrations", "skyrl-train", "skyrl-agent")),
    "slime": ("THUDM/slime", ("scripts", "examples")),
    "trl": ("huggingface/trl", ("examples",)),
    "open-instruct": ("allenai/open-instruct", ("scripts", "configs")),
    "prime-rl": ("PrimeIntellect-ai/prime-rl", ("configs", "examples")),
}
"""Name of a checkout -> repository, and folders with scripts that train."""
SUFFIXES: Final = (".sh", ".yaml", ".yml", ".toml", ".py", ".json", ".ipynb", ".slurm")
FORMATS: Final = r"(-Base|-base)?([-_](FP8|fp8|BF16|bf16|INT4|int4|torch_dist|slime))*"
"""Ends of names that are the same network: its base, another format, or a trainer's checkpoint of it."""
FAMILY_FIELDS: Final = ("model.", "backend.attention")
"""Fields of refusals that are of the network, and of no other choice."""
COUNTED_WITHIN: Final = 0.15
"""Largest difference of the plan's parameters from transformers' with which its machine is told."""
LENGTHS: Final = ("training.micro_batch_size=1", "backend.engine.memory_fraction=0.5")
_EXPERTS: Final = "tensor: {}, expert: {}, cpu_optimizer: true}}"
_MEGATRON: Final = f"backend.parallel={{{{strategy: megatron, {_EXPERTS}"
_SLIME: Final = f"backend.parallel={{{{{_EXPERTS}"
_DENSE: Final = "tensor: 4, cpu_optimizer: true}"
_ENGINE: Final = "backend.engine.tensor_parallel="
LAYOUTS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "trl": (
        ("hardware=1xH100",),
        ("hardware=8xH100",),
        ("hardware=8xH100", f"{_ENGINE}4"),
        ("hardware=8xB200", f"{_ENGINE}4"),
        ("hardware=4x8xB200", "launcher=slurm", f"{_ENGINE}8"),
    ),
    "skyrl": (
        ("hardware=1xH100",),
        ("hardware=8xH100",),
        ("hardware=8xH100", f"backend.parallel={{strategy: megatron, {_DENSE}"),
        ("hardware=8xH100", _MEGATRON.format(4, 8), f"{_ENGINE}4"),
        ("hardware=8xB200",),
        ("hardware=8xB200", _MEGATRON.format(4, 8), f"{_ENGINE}4"),
        ("hardware=4x8xB200", "launcher=slurm", _MEGATRON.format(8, 32), f"{_ENGINE}8"),
        ("hardware=16x8xB200", "launcher=slurm", _MEGATRON.format(8, 128), f"{_ENGINE}32"),
    ),
    "slime": (
        ("hardware=1xH100",),
        ("hardware=8xH100", f"backend.parallel={{{_DENSE}"),
        ("hardware=8xH100", _SLIME.format(4, 8), f"{_ENGINE}4"),
        ("hardware=8xB200", _SLIME.format(4, 8), f"{_ENGINE}4"),
        ("hardware=4x8xB200", "launcher=slurm", _SLIME.format(8, 32), f"{_ENGINE}8"),
        ("hardware=16x8xB200", "launcher=slurm", _SLIME.format(8, 128), f"{_ENGINE}32"),
    ),
}
"""Trainer -> machines with a division of the network, from the smallest."""
TRAINERS: Final = tuple(LAYOUTS)
YES: Final = "yes"
NO: Final = "no"
NOT_TRIED: Final = "not tried"
NO_ARGUMENTS: Final = ("architectures", "quantization_config", "model_type")
"""Keys of config.json that are no arguments of a configuration's class here."""
ENGINE_PROOF: Final = (
    "tests/trainers/test_slime_engine_classes.py::test_sglang_has_the_classes_of_the_table"
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of the table."""

    name: str
    family: str
    class_name: str
    """Class of its config.json, by which vLLM and SGLang know it."""
    words: tuple[str, ...]
    """Overrides that choose it."""
    script_names: tuple[str, ...]
    model_types: tuple[str, ...]
    """`model_type` of the checkpoint, and of its text network."""
    config: Mapping[str, Any] | None
    """The part of its config.json that xp has. None means that no public source states it."""

    @property
    def option(self) -> str | None:
        """Option of the group `model`."""
        word = self.words[0]
        if word == "model=hf":
            return None
        return word.removeprefix("model=")


@dataclass(frozen=True)
class Answer:
    """What a trainer does with a checkpoint."""

    verdict: str
    """`YES`, `NO` or `NOT_TRIED`."""
    proof: str = ""
    """A test, or a refusal with its proof."""
    machine: str = ""
    """The smallest machine of `LAYOUTS` on which the plan fits; empty if none does."""


@cache
def checkpoints() -> tuple[Checkpoint, ...]:
    """All checkpoints that are counted."""
    families = yaml.safe_load(CHECKPOINTS.read_text(encoding="utf-8"))
    return tuple(
        _checkpoint(family, name, facts)
        for family, members in families.items()
        for name, facts in members.items()
    )


def _checkpoint(family: str, name: str, facts: Mapping[str, Any]) -> Checkpoint:
    config = known_config(name)
    option = facts.get("option") or options().get(name)
    if option is not None:
        words: tuple[str, ...] = (f"model={option}",)
    else:
        words = ("model=hf", f"model.path={name}")
    types = [facts.get("type")]
    if config is not None:
        types += [config["model_type"], text_part(config)["model_type"]]
    return Checkpoint(
        name,
        family,
        facts["class"],
        words,
        tuple(facts.get("names") or [name.rpartition("/")[2]]),
        tuple(dict.fromkeys(kind for kind in types if kind)),
        config,
    )


@cache
def options() -> Mapping[str, str]:
    """Checkpoint -> its option in conf/model."""
    found = {}
    for file in sorted((ROOT / "conf/model").glob("*.yaml")):
        model = yaml.safe_load(file.read_text(encoding="utf-8"))["model"]
        if model.get("architecture") is not None:
            found[str(model["path"])] = file.stem
    return found


def count(checkouts: Mapping[str, Path]) -> dict[str, Any]:
    """Number of scripts of each checkout that name each checkpoint, with the checkouts' commits.

    Args:
        checkouts: name in `REPOSITORIES` -> directory.
    """
    patterns = {one.name: _pattern(one.script_names) for one in checkpoints()}
    repositories = {}
    counts: dict[str, dict[str, int]] = {name: {} for name in patterns}
    for checkout, directory in checkouts.items():
        source, folders = REPOSITORIES[checkout]
        texts = [
            file.read_text(encoding="utf-8", errors="replace")
            for file in _scripts(directory, folders)
        ]
        for name, pattern in patterns.items():
            number = sum(pattern.search(text) is not None for text in texts)
            if number:
                counts[name][checkout] = number
        repositories[checkout] = {
            "source": source,
            "commit": _commit(directory),
            "folders": [folder for folder in folders if (directory / folder).is_dir()],
            "scripts": len(texts),
        }
    return {"repositories": repositories, "counts": counts}


def _pattern(names: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(
        rf"(?<![\w.-])({'|'.join(map(re.escape, longest_first))}){FORMATS}(?![\w.-]*\w)"
    )


def _scripts(directory: Path, folders: Sequence[str]) -> Iterator[Path]:
    for folder in folders:
        for file in sorted((directory / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                yield file


def _commit(directory: Path) -> str:
    command = ["git", "-C", str(directory), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def listed(vllm: Path, sglang: Path) -> dict[str, Any]:
    """Classes of the checkpoints that the installed engines have, with the engines' versions.

    Args:
        vllm: directory of the package `vllm`.
        sglang: directory of the package `sglang`.
    """
    registry = (vllm / "model_executor/models/registry.py").read_text(encoding="utf-8")
    models = "\n".join(
        file.read_text(encoding="utf-8") for file in sorted((sglang / "srt/models").glob("*.py"))
    )
    names = sorted({one.class_name for one in checkpoints()})
    return {
        "vLLM": {
            "version": _version(vllm),
            "classes": [name for name in names if f'"{name}"' in registry],
        },
        "SGLang": {
            "version": _version(sglang),
            "classes": [name for name in names if re.search(rf"^class {name}\b", models, re.M)],
        },
    }


def _version(package: Path) -> str:
    (metadata,) = package.parent.glob(f"{package.name}-*.dist-info")
    return metadata.name.removeprefix(f"{package.name}-").removesuffix(".dist-info")


@cache
def counts() -> Mapping[str, int]:
    """Checkpoint -> number of scripts in all repositories."""
    recorded = json.loads(COUNTS.read_text(encoding="utf-8"))["counts"]
    return {name: sum(by_repository.values()) for name, by_repository in recorded.items()}


def most_trained() -> list[Checkpoint]:
    """The most counted checkpoint of each family, and the others with two scripts or more, by their count."""
    chosen = []
    families: set[str] = set()
    for one in sorted(checkpoints(), key=lambda one: -counts()[one.name]):
        if one.family not in families or counts()[one.name] >= 2:
            chosen.append(one)
        families.add(one.family)
    return chosen


@cache
def trained() -> Mapping[str, Mapping[str, str]]:
    """Trainer -> `model_type` -> the test that trains a tiny network of it."""
    table: Mapping[str, Mapping[str, str]] = importlib.import_module(
        "tests.support.families"
    ).TRAINED
    return table


@cache
def answer(trainer: str, name: str) -> Answer:
    """What a trainer does with a checkpoint: the plan's refusal, else the test of its family."""
    (checkpoint,) = (one for one in checkpoints() if one.name == name)
    refusal, machine = planned(trainer, name)
    if refusal is not None:
        return Answer(NO, with_proof(trainer, refusal.field, refusal.reason))
    tests = trained().get(trainer, {})
    proof = next((tests[kind] for kind in checkpoint.model_types if kind in tests), None)
    if proof is not None:
        return Answer(YES, f"`{proof}`", machine)
    return Answer(NOT_TRIED, "", machine)


@cache
def planned(trainer: str, name: str) -> tuple[Refusal | None, str]:
    """A trainer's refusal of a checkpoint's network with every layout, and the first machine on which the plan fits."""
    (checkpoint,) = (one for one in checkpoints() if one.name == name)
    if checkpoint.config is None and checkpoint.option is None:
        return None, ""
    refusal = None
    takes_network = False
    for layout in LAYOUTS[trainer]:
        spec = compose(
            ["env=gsm8k_hub", f"backend={trainer}", *checkpoint.words, *layout, *LENGTHS]
        )
        if takes_network and not _may_fit(spec):
            continue
        refused = _refusals(spec)
        about = [one for one in refused if one.field.startswith(FAMILY_FIELDS)]
        if about:
            refusal = refusal or about[0]
            if about[0].field.startswith("model."):
                return about[0], ""  # No layout changes the network.
            continue
        takes_network = True
        if not refused and _fits(spec):
            if _is_counted(checkpoint):
                return None, layout[0].removeprefix("hardware=")
            return None, ""
    if takes_network:
        return None, ""
    return refusal, ""


def _fits(spec: RunSpec) -> bool:
    if not works(spec):
        return False
    # A fit that cannot be is looked at first: its remedies take seconds.
    if impossible_by(estimate(spec), capacity_of(spec)) is not None:
        return False
    is_likely = fit(spec).verdict in (MemoryVerdict.FITS, MemoryVerdict.LIKELY)
    return is_likely and not [*memory_refusals(spec)]


def _may_fit(spec: RunSpec) -> bool:
    """Returns whether all accelerators together can hold weights and gradients in bfloat16."""
    shape = spec.model.architecture
    hardware = spec.hardware
    number = hardware.num_nodes * hardware.accelerators_per_node
    return shape is None or 4 * weights_of(shape).total < number * capacity_of(spec)


def _refusals(spec: RunSpec) -> list[Refusal]:
    try:
        return [*spec_refusals(spec), *size_refusals(spec), *machine_refusals(spec)]
    except XpError as error:
        return [Refusal("", str(error))]


def sizes() -> dict[str, int]:
    """Checkpoint -> parameters of the whole network, with its parts for pictures, by transformers' own classes."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    numbers = {}
    for checkpoint in checkpoints():
        if checkpoint.config is None:
            continue
        given = {key: value for key, value in checkpoint.config.items() if key not in NO_ARGUMENTS}
        if "vision_config" not in given:
            auto = AutoModelForCausalLM
        else:
            auto = AutoModelForImageTextToText
            if "model_type" not in given["vision_config"]:
                # The keys of the checkpoint's own code; transformers' default of the family has its sizes.
                given.pop("vision_config")
        config = CONFIG_MAPPING[checkpoint.config["model_type"]](**given)
        with torch.device("meta"):
            model = auto.from_config(config)
        numbers[checkpoint.name] = sum(weight.numel() for weight in model.parameters())
    return numbers


@cache
def recorded_sizes() -> Mapping[str, int]:
    """Checkpoint -> parameters, as `sizes` counted them."""
    numbers: dict[str, int] = json.loads(SIZES.read_text(encoding="utf-8"))
    return numbers


def _is_counted(checkpoint: Checkpoint) -> bool:
    """Returns whether the plan's memory is of a network of about the true size."""
    if checkpoint.config is None:
        return checkpoint.option is not None
    network = network_of(checkpoint.config)
    if network is None:
        return False
    planned = weights_of(Architecture(**network)).total + media_parameters(None, checkpoint.config)
    size = recorded_sizes()[checkpoint.name]
    return abs(planned / size - 1) <= COUNTED_WITHIN


HEAD: Final = """\
# Models

Made by `make docs`: the checkpoints of 2026 that public scripts train most, and what xp knows of each.
`tests/integration/test_checkpoints.py` checks it. For any other model,
`python -m xp plan model=hf model.path=ORG/NAME backend=NAME` says what its trainer refuses.

The trainers' columns are about training on text; parts for pictures and sound are frozen.

* **yes**: a test trains a tiny network of the family with this trainer; the number is its name below.
  On the CPU of a test, SkyRL's and Slime's engines are stand-ins.
* **no**: the plan refuses it; the number is the reason, with the test that proves it. Without a test it is xp that lacks a part.
* **not tried**: the plan does not refuse it, and no test of the family has run.
* *from* names the smallest machine of a list (`tools/checkpoints.py`) on which the plan of the whole checkpoint fits, with one
  episode a micro-batch. Without it, none of the list fits, or the plan counts the family's parameters wrongly and says so.

The engines: *in process* (transformers, with TRL) has sampled in the test of TRL's column.
vLLM {vllm} and SGLang {sglang} are those that the trainers pin: *listed* means that the engine has the checkpoint's class, and
that xp has not sampled with it; *no* means that it has none.

*Scripts* is the number of example scripts that name the checkpoint, its base or another format of it ([counts](#counts)).
*Parameters* are in billions, with the parts for pictures, by transformers' own classes.
"""


def page() -> str:
    """Content of docs/models.md."""
    engines = json.loads(ENGINES.read_text(encoding="utf-8"))
    notes: dict[str, int] = {}
    lines = [
        HEAD.format(vllm=engines["vLLM"]["version"], sglang=engines["SGLang"]["version"]),
        "| checkpoint | option | scripts | parameters | TRL | SkyRL | Slime | in process | vLLM | SGLang |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(one, engines, notes) for one in most_trained()]
    lines += ["", *(f"{number}. {note}" for note, number in notes.items()), ""]
    return "\n".join([*lines, *_counts(), *_sources()])


def _row(checkpoint: Checkpoint, engines: Mapping[str, Any], notes: dict[str, int]) -> str:
    answers = {trainer: answer(trainer, checkpoint.name) for trainer in TRAINERS}
    cells = [
        f"`{checkpoint.name}`",
        f"`model={checkpoint.option}`" if checkpoint.option else "",
        str(counts()[checkpoint.name]),
        _parameters(checkpoint),
        *(_cell(answers[trainer], notes) for trainer in TRAINERS),
        _cell(Answer(answers["trl"].verdict, answers["trl"].proof), notes),
        *(_listed(checkpoint, name, engine, notes) for name, engine in engines.items()),
    ]
    return f"| {' | '.join(cells)} |"


def _listed(
    checkpoint: Checkpoint, name: str, engine: Mapping[str, Any], notes: dict[str, int]
) -> str:
    if checkpoint.class_name in engine["classes"]:
        return "listed"
    reason = f"{name} {engine['version']} has no class {checkpoint.class_name}"
    return _cell(Answer(NO, f"{reason} (proof: `{ENGINE_PROOF}`)"), notes)


def _cell(one: Answer, notes: dict[str, int]) -> str:
    words = [one.verdict]
    if one.proof:
        words.append(f"({notes.setdefault(one.proof, len(notes) + 1)})")
    if one.machine:
        words.append(f"from {one.machine}")
    return " ".join(words)


def _parameters(checkpoint: Checkpoint) -> str:
    if checkpoint.name in recorded_sizes():
        number = recorded_sizes()[checkpoint.name]
    elif checkpoint.option is not None:
        shape = compose([*checkpoint.words]).model.architecture
        assert shape is not None  # Options have it.
        number = weights_of(shape).total
    else:
        return "no public source"
    return f"{number / 1e9:.1f}"


def _counts() -> Iterator[str]:
    recorded = json.loads(COUNTS.read_text(encoding="utf-8"))
    repositories = recorded["repositories"]
    yield from (
        "## Counts",
        "",
        "Made by `python -m tools.checkpoints count` of these checkouts: files of the folders, and those that name a checkpoint.",
        "",
    )
    yield f"| | {' | '.join(repositories)} |"
    yield f"|---|{'---|' * len(repositories)}"
    commits = (
        f"[{facts['commit'][:8]}](https://github.com/{facts['source']}/tree/{facts['commit']})"
        for facts in repositories.values()
    )
    yield f"| commit | {' | '.join(commits)} |"
    folders = (", ".join(facts["folders"]) for facts in repositories.values())
    yield f"| folders | {' | '.join(folders)} |"
    yield f"| files | {' | '.join(str(facts['scripts']) for facts in repositories.values())} |"
    for one in most_trained():
        numbers = recorded["counts"][one.name]
        cells = " | ".join(str(numbers.get(repository, "")) for repository in repositories)
        yield f"| `{one.name}` | {cells} |"
    yield ""


def _sources() -> Iterator[str]:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    yield from (
        "## Sources of the sizes",
        "",
        "A plan of these checkpoints needs no hub: their sizes are in `xp/lib/models/known_models.json`, or in the option.",
        "",
        "| checkpoint | source |",
        "|---|---|",
    )
    for one in most_trained():
        if one.name in table:
            source = table[one.name]["source"]
        elif one.option is not None:
            source = f"`conf/model/{one.option}.yaml`"
        else:
            source = "none found: the checkpoint is not planned without its config.json"
        yield f"| `{one.name}` | {source} |"
    yield ""


def main(command: str, *arguments: str) -> None:
    """Writes the counts, the engines' classes or the sizes."""
    recorded: Mapping[str, Any]
    if command == "count":
        checkouts = dict(argument.split("=", 1) for argument in arguments)
        recorded = count({name: Path(place) for name, place in checkouts.items()})
        file = COUNTS
    elif command == "engines":
        recorded = listed(*map(Path, arguments))
        file = ENGINES
    elif command == "sizes":
        recorded = sizes()
        file = SIZES
    else:
        raise SystemExit(__doc__)
    file.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
