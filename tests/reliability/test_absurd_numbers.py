"""Numbers that no run has, on the command line and in somebody else's spec: refused by name, or planned at once."""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import re
import resource
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import yaml

from tests.foreign import leave_run, record
from xp.backends.batch.shape import FIELDS
from xp.cli.commands import HANDLERS
from xp.cli.parser import parse
from xp.compose import compose
from xp.errors import ExitCode, XpError
from xp.spec import RunSpec, schema_fields

pytestmark = pytest.mark.scorecard(54)

HUGE: Final = 10**400
MILLION: Final = 10**6
LARGE: Final = 10**13 + 7
VALUES: Final = (HUGE, LARGE, -1, 0, 1e308, math.nan, math.inf)
STORED: Final = (HUGE, LARGE, math.inf)
"""Those that are tried in a file too: its numbers pass through the same model."""
DIGITS: Final = "9" * 5000
"""More than Python turns into a number."""
MEMORY: Final = 2 << 30
"""Bytes that planning may add to this process."""
SECONDS: Final = 60
"""Processor time of one plan, a thousand times the usual one: what takes more would not end."""

DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

ON_GPUS: Final = ("model=qwen3-4b", "hardware=h100x8")
LORA: Final = "model.lora={rank: 32, alpha: 64.0, dropout: 0.0, target_modules: null}"
REWARD_FN: Final = "env.reward_fn=[{fn: 'mine:one', weight: 1.0}]"
SPECS: Final[Mapping[str, tuple[str, ...]]] = {
    "trl": (REWARD_FN,),
    "skyrl": ("backend=skyrl", *ON_GPUS, "algorithm=ppo"),
    "slime": ("backend=slime", *ON_GPUS),
    "lora": (*ON_GPUS, "backend.parallel.strategy=ddp", LORA),
}
"""Specs that together have every section."""
SIZES: Final = (*FIELDS.values(), "hardware.num_nodes", "hardware.accelerators_per_node")
"""Keys of a batch shape, near which legal ones are searched."""
WITHIN: Final[Mapping[str, Any]] = {
    "env.train.indices": lambda value: [value],
    "env.held_out.indices": lambda value: [value],
    "env.train.pass_rate": lambda value: [0.0, value],
    "model.build.players": lambda value: {"hasty": value},
    "model.chat_template": lambda value: {"depth": value},
    "env.reward_fn": lambda value: [{"fn": "mine:one", "weight": value}],
    "backend.overrides": lambda value: {"depth": [value]},
    "env.options": lambda value: {"depth": value},
    "launcher.options": lambda value: {"depth": value},
}
"""Key -> its value with a number in it, for lists and for keys of the user's own."""
NO_COUNTS: Final = ("seed", "indices", "chat_template")
"""Last words of the keys whose whole numbers count nothing."""


def user_key(path: str) -> str:
    return path.replace("env.members.*.", "env.").removesuffix(".*.weight")


def has(annotation: Any, *kinds: type) -> bool:
    """Returns whether a value of some of these types is legal, also within a list or a mapping."""
    return annotation in kinds or any(has(one, *kinds) for one in get_args(annotation))


def numeric_keys() -> list[str]:
    """Every key that takes a number, as the user types it for a single environment, and those that take anything."""
    keys = ((user_key(path), field.annotation) for path, field in schema_fields(RunSpec))
    return list(dict.fromkeys(key for key, kind in keys if has(kind, int, float) or key in WITHIN))


def counts() -> set[str]:
    """The keys that take a count, which has an upper bound."""
    keys = ((user_key(path), field.annotation) for path, field in schema_fields(RunSpec))
    return {key for key, kind in keys if has(kind, int) and key.rpartition(".")[2] not in NO_COUNTS}


def is_legal(key: str, value: float) -> bool:
    """Returns whether some spec may have the value."""
    return math.isfinite(min(value, LARGE)) and value != HUGE and not (value == LARGE and key in COUNTS)


def keys_of(spec: RunSpec) -> list[str]:
    """Those of them whose section a spec has."""
    container = spec.model_dump(mode="json")
    return [key for key in numeric_keys() if isinstance(holder(container, key), dict)]


def holder(container: dict[str, Any], key: str) -> Any:
    """The section of a key in a dumped spec of one environment; None: it is null."""
    node: Any = container
    for part in key.split(".")[:-1]:
        node = node and node[part]
        node = next(iter(node["members"].values())) if part == "env" else node
    return node


def cases() -> Iterator[tuple[str, list[str]]]:
    """Each spec with the keys that those before it do not have, and with all sizes."""
    done: set[str] = set()
    for name, words in SPECS.items():
        keys = keys_of(compose(words))
        yield name, [key for key in keys if key not in done or (key in SIZES and name != "lora")]
        done |= {*keys}


CASES: Final = dict(cases())
COUNTS: Final = counts()


def text_of(value: Any) -> str:
    """A value in the syntax of overrides."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    return f"'{value}'" if isinstance(value, str) else str(value)


@pytest.fixture(autouse=True)
def bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory of its own, and a process that cannot take the machine's memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (before, hard))


@pytest.fixture(scope="module")
def asked() -> Namespace:
    """The command line `xp plan`, parsed once; each case has other overrides."""
    return parse(["plan"])


def plan(asked: Namespace, *words: str) -> tuple[int, str]:
    """Exit code and message of `xp plan WORDS`; raises whatever would be a traceback."""
    asked.overrides = list(words)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return HANDLERS["plan"](asked), ""
    except XpError as error:
        return int(error.code), str(error)


def fault_of(asked: Namespace, words: Sequence[str], code: ExitCode, named: str | None) -> str | None:
    """Fault of the way in which a plan ends; None: there is none.

    Args:
        asked: the command line.
        words: overrides.
        code: the exit code of a refused spec.
        named: text in the message; None: the spec may be legal.
    """
    begun = time.process_time()
    try:
        found, said = plan(asked, *words)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    if (seconds := time.process_time() - begun) > SECONDS:
        return f"{seconds:.1f} s"
    if found in ((ExitCode.OK, ExitCode.PLAN, code) if named is None else (code,)) and (named or "") in said:
        return None
    return f"exit code {found} {said[:200]}"


def test_the_specs_have_every_section_and_can_be_planned(asked: Namespace) -> None:
    assert {name: plan(asked, *words) for name, words in SPECS.items()} == dict.fromkeys(SPECS, (ExitCode.OK, ""))
    assert {key for keys in CASES.values() for key in keys} == {*numeric_keys()}


@pytest.mark.parametrize("name", CASES)
def test_a_number_on_the_command_line_is_refused_or_planned(asked: Namespace, name: str) -> None:
    faults = []
    for key in CASES[name]:
        for value in (*VALUES, MILLION if key in SIZES else 10**9):
            words = [*SPECS[name], f"{key}={text_of(WITHIN[key](value) if key in WITHIN else value)}"]
            if fault := fault_of(asked, words, ExitCode.CONFIG, None if is_legal(key, value) else key):
                faults.append(f"{key}={str(value)[:20]}: {fault}")
    assert "\n".join(faults) == ""


@pytest.mark.parametrize("name", CASES)
def test_a_number_in_a_recorded_spec_is_refused_or_planned(asked: Namespace, tmp_path: Path, name: str) -> None:
    spec = compose([*SPECS[name], f"outputs={tmp_path}"])
    file = leave_run(tmp_path, "theirs", record("theirs"), spec) / "spec.yaml"
    faults = []
    for key in CASES[name]:
        for value in STORED:
            container = spec.model_dump(mode="json")
            last = key.rpartition(".")[2]
            holder(container, key)[last] = WITHIN[key](value) if key in WITHIN else value
            file.write_text(yaml.dump(container, Dumper=DUMPER))
            # A file with a number that is not finite is refused whole: xp writes none.
            refused = last if isinstance(value, int) else "spec.yaml is not a spec"
            words = [f"resume={file.parent}"]
            if fault := fault_of(asked, words, ExitCode.RUN_DIR, None if is_legal(key, value) else refused):
                faults.append(f"{key}={str(value)[:20]}: {fault}")
    assert "\n".join(faults) == ""


@pytest.mark.parametrize("name", ["trl", "skyrl", "slime"])
def test_any_legal_sizes_together_are_planned_or_refused_at_once(asked: Namespace, name: str) -> None:
    chance = random.Random(name)
    faults = []
    for _ in range(12):
        sizes = {key: chance.choice((1, 2, 96, 720_720, 999_983, MILLION)) for key in SIZES}
        sizes["training.group_size"] = max(2, sizes["training.group_size"])
        placement = "separate"
        if chance.random() < 0.5:
            placement = "colocated"
            del sizes["backend.engine.accelerators"]
        words = [f"backend.engine.placement={placement}", *(f"{key}={size}" for key, size in sizes.items())]
        if fault := fault_of(asked, [*SPECS[name], *words], ExitCode.CONFIG, None):
            faults.append(f"{' '.join(words)}: {fault}")
    assert "\n".join(faults) == ""


@pytest.mark.parametrize("key", ["training.num_steps", "training.learning_rate", "backend.overrides.depth", "name"])
def test_a_number_with_too_many_digits_is_refused_by_its_key(asked: Namespace, key: str) -> None:
    for value in (DIGITS, f"[1, {DIGITS}]", f"{{a: -{DIGITS}}}"):
        code, said = plan(asked, f"{key}={value}")
        assert code == ExitCode.CONFIG
        assert said == f"{key}: a number has more than 1000 digits; quote it if it is text"


def test_a_number_with_too_many_digits_in_a_file_is_refused(asked: Namespace, tmp_path: Path) -> None:
    file = leave_run(tmp_path, "theirs", record("theirs")) / "spec.yaml"
    file.write_text(re.sub(r"num_steps: \d+", f"num_steps: {DIGITS}", file.read_text()))
    code, said = plan(asked, f"resume={file.parent}")
    assert code == ExitCode.RUN_DIR
    assert "spec.yaml is not a spec" in said
    recipe = tmp_path / "recipes" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_text(f"# @package _global_\ntraining:\n  num_steps: {DIGITS}\n")
    asked.config_dir = [tmp_path]
    try:
        code, said = plan(asked, "recipes=mine")
    finally:
        asked.config_dir = []
    assert code == ExitCode.CONFIG
    assert said == f"{recipe}:3:14: training.num_steps: a number has more than 1000 digits; quote it if it is text"
