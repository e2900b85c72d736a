"""`python -m xp plan --native` and `--native-diff FILE`: a plan's native keys, and a script's own beside them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from typing import Any, Final

import yaml

from xp.backends.slime.control.flags import catalog as flag_catalog
from xp.cli.explain import fields_of
from xp.cli.table import print_json, show_table
from xp.composition.known_names import PLAIN, RENAMED, SENTENCES, foreign_hint
from xp.composition.native_names import catalogs
from xp.composition.scripts import Script, keys_of, read_script
from xp.errors import XpError
from xp.lib.reading import yaml_value
from xp.lib.text import as_yaml
from xp.planning.native_keys import UNKNOWN_EFFECT, NativeKeys
from xp.planning.plan import Plan
from xp.spec import BackendName

COLUMNS: Final = dict.fromkeys(("key", "script", "plan", "result", "in_xp"), 0)

MODEL: Final = "model.path"
MODEL_WORDS: Final = SENTENCES["--model"]


class KeyResult(StrEnum):
    """What became of a script's key."""

    EQUAL = "equal"
    DIFFERENT = "different"
    TAKEN = "taken by xp"
    """xp does it itself, or by a field whose value has another form."""
    LEFT_OVER = "left over"
    UNSET = "not in the script"
    """The script leaves the trainer's default, and the plan has another value."""


@dataclass(frozen=True)
class KeyLine:
    """A script's key beside a plan."""

    key: str
    script: str
    plan: str | None
    """What the trainer receives for the key. None means nothing."""
    result: KeyResult
    in_xp: str
    """xp's field with its value, or a sentence."""


def show_native(args: Namespace, plan: Plan) -> None:
    """Prints the native keys of the training, or of the fine-tuning if that is all; or the table of a script's keys."""
    native = PlanKeys(plan)
    if args.native_diff is not None:
        script = read_script(args.native_diff, native.keys.known.__contains__)
        lines = native.diff(script)
        show_table(COLUMNS, [asdict(line) for line in lines], as_json=args.json)
        for sentence in script.unread:
            print(f"not read: {sentence}", file=sys.stderr)
        if not args.json:
            print(counts(lines))
    elif args.json:
        print_json(native.rendered)
    else:
        print("\n".join(native.lines()))


def counts(lines: list[KeyLine]) -> str:
    """Number of lines of each result."""
    return ", ".join(
        f"{sum(line.result is result for line in lines)} {result}" for result in KeyResult
    )


class PlanKeys:
    """The native keys of a plan's training, or of its fine-tuning if it has no training.

    Raises:
        XpError: the trainer is a plugin's, whose keys xp does not know.
    """

    def __init__(self, plan: Plan) -> None:
        self.spec = plan.spec
        self.backend = plan.spec.backend.name
        if self.backend not in list(BackendName):
            raise XpError(
                f"xp knows the native keys of {', '.join(BackendName)}; backend={self.backend} is a plugin's"
            )
        self._stage = "train" if plan.trains else "sft"
        job = next(stage.job for stage in plan.stages if stage.name == self._stage)
        self._config = json.loads(
            next(text for file, text in job.files.items() if file.endswith("config.json"))
        )
        render = import_module(f"xp.backends.{self.backend}.control.render")
        self.keys: NativeKeys = (render.native_keys if plan.trains else render.sft_keys)(self.spec)

    def lines(self) -> list[str]:
        """The keys in the trainer's own syntax: words of a command line, or YAML for TRL."""
        if self.backend == BackendName.TRL:
            return yaml.safe_dump(dict(self.rendered), sort_keys=False).splitlines()
        if self.backend == BackendName.SKYRL:
            return [shlex.quote(f"{key}={as_text(value)}") for key, value in self.rendered.items()]
        return [shlex.join((flag, *words)) for flag, words in self.rendered.items()]

    @cached_property
    def rendered(self) -> Mapping[str, Any]:
        """Native key -> value, as a script's keys are read."""
        config: dict[str, Any] = self._config
        if self.backend == BackendName.TRL:
            return dict(config["grpo"] if "grpo" in config else config["arguments"])
        if self.backend == BackendName.SKYRL:
            models = dict.fromkeys(config["model_keys"], self.spec.model.path)
            return {
                **keys_of(config["native_keys"]),
                **models,
                **config["paths"],
                **config.get("arguments", {}),
            }
        return keys_of(config["command"]["flags"])

    @cached_property
    def _fields(self) -> Mapping[str, Any]:
        return {path: field.value for path, field in fields_of(self.spec).items()}

    def diff(self, script: Script) -> list[KeyLine]:
        """One row for each field that replaces a default of the trainer's, then one for each key of a script."""
        set_keys = {self._known(key) for key in script.keys}
        num_native = len(set_keys & set(self.keys.known))
        is_trl = script.calls_trl and self.backend == BackendName.TRL
        # Another framework's script leaves defaults of its own.
        is_native = is_trl or 2 * num_native >= len(set_keys)
        if self._stage == "train" and is_native:
            defaults = catalogs()[self.backend]
        else:
            defaults = {}
        unset = [
            self._unset_line(key, defaults[key].get("default"), planned)
            for key, planned in self.rendered.items()
            if key in defaults and key not in set_keys and self._is_replaced(key, defaults[key])
        ]
        return [*unset, *(self._line(key, value) for key, value in script.keys.items())]

    def _is_replaced(self, key: str, known: Mapping[str, Any]) -> bool:
        """Returns whether a field's value stands where the trainer has another default."""
        default = known.get("default")
        planned = self.rendered[key]
        field = self.keys.owners.get(key)
        # The network is the checkpoint's, not a choice.
        if not field or field.startswith("model.architecture"):
            return False
        if default in (None, "None") or planned is None:
            return False
        return not is_same(default, planned)

    def _unset_line(self, key: str, default: Any, planned: Any) -> KeyLine:
        """Row of a default that the script keeps without a word; with the override that restores it."""
        field = self.keys.owners[key]
        sentence = self._home(key, "")
        # A catalog writes an enumeration as CLASS.member, which is no value of a field.
        is_value = not re.fullmatch(r"[A-Z]\w+\.\w+", as_text(default))
        if is_value and field in self._fields and is_same(self._fields[field], planned):
            sentence += f"; the script's: {field}={as_yaml(default)}"
        return KeyLine(key, as_text(default), as_text(planned), KeyResult.UNSET, sentence)

    def _line(self, typed: str, value: Any) -> KeyLine:
        key = self._known(typed)
        text = as_text(value)
        owned = self.keys.table.owned.get(key)
        sentence = self._sentence(key)
        if key in self.keys.owners or (key in self.rendered and owned is None):
            # A key that is left out has the trainer's default, which the field may state.
            planned = self.rendered.get(key, self._fields.get(self.keys.owners.get(key, "")))
            if is_same(value, planned):
                result = KeyResult.EQUAL
            else:
                result = KeyResult.DIFFERENT
            if key in self.rendered:
                plan = as_text(self.rendered[key])
            else:
                plan = None
            return KeyLine(typed, text, plan, result, self._home(key, sentence))
        if key in self.rendered and key not in RENAMED and is_same(value, self.rendered[key]):
            return KeyLine(
                typed,
                text,
                as_text(self.rendered[key]),
                KeyResult.EQUAL,
                self._with_value(sentence),
            )
        if owned is not None:
            return self._of_field(
                typed, value, RENAMED.get(key, owned), is_same_value=key in RENAMED
            )
        if typed.startswith("${"):
            sentence = "an array that neither the script nor the files beside it set"
        hint = foreign_hint(f"{typed}={text}") or foreign_hint(f"{key}={text}")
        if key not in self.keys.known and hint is not None:
            words = hint.removeprefix("in xp: ")
            word, _, native_value = words.partition("=")
            field = f"{word}.name" if word == "algorithm" else word
            if field in self._fields and PLAIN.fullmatch(native_value or "="):
                is_exact = field == word and words not in SENTENCES.values()
                return replace(
                    self._of_field(typed, native_value, field, is_same_value=is_exact), script=text
                )
            if words == MODEL_WORDS and self._is_another_model(value):
                return KeyLine(typed, text, None, KeyResult.DIFFERENT, self._with_value(MODEL))
            return KeyLine(typed, text, None, KeyResult.TAKEN, words)
        return KeyLine(typed, text, None, KeyResult.LEFT_OVER, sentence)

    def _sentence(self, key: str) -> str:
        """What xp says of a key that no field renders."""
        if key not in self.keys.known:
            return f"no key of {self.backend}'s, and xp knows no field for it"
        if key in self.keys.table.owned:
            return self.keys.table.owned[key]
        passes = f"{self.keys.section}.{key.removeprefix('--')} passes it on; {UNKNOWN_EFFECT}"
        return self.keys.table.refused.get(key, passes)

    def _known(self, typed: str) -> str:
        """The trainer's own spelling of a key."""
        if self.backend == BackendName.TRL:
            return typed.removeprefix("--").replace("-", "_")
        if self.backend == BackendName.SKYRL:
            policy = f"trainer.policy.{typed}"
            if typed not in self.keys.known and policy in self.keys.known:
                return policy
            return typed
        flags = flag_catalog().flags
        same = (
            name
            for name in self.rendered
            if typed in flags and name in flags and flags[name].dest == flags[typed].dest
        )
        return next(same, typed)

    def _home(self, key: str, sentence: str) -> str:
        """The field of a rendered key with its value, why it is the same for every run, or the answer's sentence."""
        field = self.keys.owners.get(key)
        if field:
            return self._with_value(field)
        if key in self.keys.pins:
            return f"the same for every run: {self.keys.pins[key].reason}"
        if field is None:
            return sentence
        return "the machine and the model"

    def _is_another_model(self, value: Any) -> bool:
        """Returns whether a script's model has another name; what only the machine knows has none."""
        # Slime converts a model into a folder of its name with this end.
        name = as_text(value).strip("'\"").rstrip("/").removesuffix("_torch_dist")
        planned = str(self._fields[MODEL]).rstrip("/")
        if "$" in name or not name:
            return False
        return name.rpartition("/")[2].lower() != planned.rpartition("/")[2].lower()

    def _with_value(self, field: str) -> str:
        if field in self._fields:
            return f"{field}={as_yaml(self._fields[field])}"
        return field

    def _of_field(self, key: str, value: Any, field: str, *, is_same_value: bool) -> KeyLine:
        """Row of a key that a field answers.

        Args:
            key: the script's key.
            value: its value.
            field: path of the field, or a sentence with it.
            is_same_value: whether the field takes the script's value as it is.
        """
        if field not in self._fields:
            return KeyLine(key, as_text(value), None, KeyResult.TAKEN, field)
        planned = self._fields[field]
        is_other = is_same_value or (field == MODEL and self._is_another_model(value))
        if is_other:
            result = KeyResult.DIFFERENT
        else:
            result = KeyResult.TAKEN
        result = KeyResult.EQUAL if is_same(value, planned) else result
        return KeyLine(key, as_text(value), None, result, self._with_value(field))


def as_text(value: Any) -> str:
    """A value as a word of a command line; a flag without words is a switch."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "true"
    if isinstance(value, str):
        return value
    return json.dumps(value)


def is_same(first: Any, other: Any) -> bool:
    """Returns whether two texts or values mean the same to a trainer; 1 and 1.0 do, 1 and true do not."""
    left = _plain(first)
    right = _plain(other)
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _plain(value: Any) -> Any:
    """A value that compares: numbers as numbers, words of a flag as one value or a list."""
    if isinstance(value, list | tuple):
        values = [_plain(part) for part in value]
        if not values:
            return True
        return values[0] if len(values) == 1 else values
    if not isinstance(value, str):
        return value
    text = str(value)  # of an enumeration too
    try:
        read = (
            float(text)
            if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", text, re.I)
            else yaml_value(text)
        )
    except (ValueError, yaml.YAMLError):
        return text
    if read == "None":
        return None
    if isinstance(read, list):
        return _plain(read)
    return read
