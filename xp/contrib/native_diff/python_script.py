"""Keys that a Python file or a notebook gives a trainer: arguments of its configuration classes. Nothing is executed."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CONFIGS: Final = ("GRPOConfig", "RLOOConfig", "SFTConfig")
TRAINERS: Final = ("GRPOTrainer", "RLOOTrainer", "SFTTrainer")
RENAMED_ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "LoraConfig": {
        "r": "lora_r",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
        "target_modules": "lora_target_modules",
        "modules_to_save": "lora_modules_to_save",
        "task_type": "lora_task_type",
        "use_rslora": "use_rslora",
        "use_dora": "use_dora",
    },
    "BitsAndBytesConfig": {
        "load_in_4bit": "load_in_4bit",
        "load_in_8bit": "load_in_8bit",
        "bnb_4bit_quant_type": "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    },
}
"""Class -> its argument -> the name of trl.ModelConfig for the same."""
PREFIX: Final = {"LoraConfig": "peft_config", "BitsAndBytesConfig": "quantization_config"}
"""Class -> the argument that takes it, which is written before its other arguments."""


@dataclass
class PythonScript:
    """Arguments of the configuration classes in a Python file."""

    tree: ast.Module
    keys: dict[str, Any] = field(default_factory=dict)
    """A text, or the source of another value."""
    unread: list[str] = field(default_factory=list)
    """One sentence for each part that only running the file would tell."""

    def __post_init__(self) -> None:
        self._values = {**_argparse_defaults(self.tree), **_assigned_once(self.tree)}
        self._read()

    def _read(self) -> None:
        known = {*CONFIGS, *TRAINERS, *RENAMED_ARGUMENTS}
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        calls = [(_class_name(node), node) for node in nodes]
        calls = [(name, node) for name, node in calls if name in known]
        for name, number in Counter(name for name, _ in calls).items():
            if number > 1:
                self.unread.append(
                    f"{name} is called {number} times; the last value of each key counts"
                )
        for name, call in calls:
            for argument, value in self._arguments(name, call.keywords):
                self._keep(name, argument, value)

    def _arguments(self, name: str, keywords: list[ast.keyword]) -> Iterator[tuple[str, ast.expr]]:
        for keyword in keywords:
            value = self._resolved(keyword.value)
            if keyword.arg is not None:
                yield keyword.arg, value
            elif isinstance(value, ast.Dict):
                for key, content in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant):
                        yield str(key.value), self._resolved(content)
            elif isinstance(value, ast.Call) and _class_name(value) == "dict":
                yield from self._arguments(name, value.keywords)
            else:
                self.unread.append(f"{name}(**{ast.unparse(keyword.value)}) has keys of its own")

    def _keep(self, name: str, argument: str, value: ast.expr) -> None:
        if name in TRAINERS and argument == "args":
            return
        if isinstance(value, ast.Call) and _class_name(value) in RENAMED_ARGUMENTS:
            return  # Its own arguments are keys.
        if name in RENAMED_ARGUMENTS:
            argument = RENAMED_ARGUMENTS[name].get(argument, f"{PREFIX[name]}.{argument}")
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.keys[argument] = value.value
            return
        self.keys[argument] = ast.unparse(value)
        if name not in TRAINERS and _is_computed(value):
            self.unread.append(f"{argument}={ast.unparse(value)} is computed when the script runs")

    def _resolved(self, node: ast.expr, depth: int = 0) -> ast.expr:
        """The value of a variable that the file sets once, or the default of an option; other expressions as they are."""
        value = self._values.get(ast.unparse(node))
        # `args.lr` is the option `--lr`.
        if value is None and isinstance(node, ast.Attribute):
            value = self._values.get(f"--{node.attr}")
        if value is None or depth > 20:
            return node
        return self._resolved(value, depth + 1)


def notebook_source(text: str) -> tuple[str, str]:
    """The Python of a notebook's code cells, and the commands of its `!` lines.

    Raises:
        ValueError: the text is not a notebook.
    """
    cells = json.loads(text).get("cells", [])
    python: list[str] = []
    commands: list[str] = []
    for cell in cells:
        if cell.get("cell_type") != "code":
            continue
        for line in "".join(cell.get("source", [])).splitlines():
            start = line.lstrip()
            if start.startswith("!"):
                commands.append(start[1:])
            elif not start.startswith("%"):
                python.append(line)
    return "\n".join(python), "\n".join(commands)


def _class_name(call: ast.Call) -> str:
    """Name of the called class or function, without its module."""
    return ast.unparse(call.func).rpartition(".")[2]


def _is_computed(value: ast.expr) -> bool:
    """Returns whether a value is a variable, an option without a default, or a call; a module's constant is none."""
    if isinstance(value, ast.Attribute):
        return ast.unparse(value.value) in ("args", "cfg", "config", "script_args", "training_args")
    return isinstance(value, ast.Name | ast.Call | ast.Subscript)


def _assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Variable -> its value, of variables that are set in one place of the file."""
    values: dict[str, ast.expr] = {}
    number: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            number[node.id] += 1
        if isinstance(node, ast.arg):
            number[node.arg] += 1
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets = node.targets
            value = node.value
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
            value = node.value
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                values[target.id] = value
    return {name: value for name, value in values.items() if number[name] == 1}


def _argparse_defaults(tree: ast.Module) -> dict[str, ast.expr]:
    """`--option` -> its default, of argparse; hyphens are underscores, as in the attribute."""
    defaults: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(".add_argument"):
            continue
        names = [
            str(word.value)
            for word in node.args
            if isinstance(word, ast.Constant) and str(word.value).startswith("--")
        ]
        words = {keyword.arg: keyword.value for keyword in node.keywords}
        value = words.get("default")
        if value is None and ast.unparse(words.get("action", ast.Constant(""))) == "'store_true'":
            value = ast.Constant(False)
        if names and value is not None:
            defaults[f"--{names[0].lstrip('-').replace('-', '_')}"] = value
    return defaults
