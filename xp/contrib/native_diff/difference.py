"""What became of each key of a public training script in a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from xp.backends.slime.control.flags import catalog as flag_catalog
from xp.composition.known_names import PLAIN, RENAMED, SENTENCES, foreign_hint
from xp.composition.native_names import catalogs
from xp.composition.plan_keys import PlanKeys, as_text
from xp.contrib.native_diff.scripts import Script, read_script
from xp.lib.reading import yaml_value
from xp.lib.text import as_yaml
from xp.planning.native_keys import UNKNOWN_EFFECT
from xp.spec import BackendName

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


class Difference:
    """Compares scripts with a plan.

    Args:
        plan: the native keys of the plan.
        fields: each field of the spec, as the user types it, with its value.
    """

    def __init__(self, plan: PlanKeys, fields: Mapping[str, Any]) -> None:
        self._plan = plan
        self._fields = fields
        self._keys = plan.keys

    def of_file(self, file: Path) -> tuple[list[KeyLine], Sequence[str]]:
        """One line for each key, and a sentence for each part of the script that was not read."""
        script = read_script(file, self._keys.known.__contains__)
        return self.lines(script), script.unread

    def lines(self, script: Script) -> list[KeyLine]:
        """One row for each field that replaces a default of the trainer's, then one for each key of a script."""
        set_keys = {self._known(key) for key in script.keys}
        num_native = len(set_keys & set(self._keys.known))
        is_trl = script.calls_trl and self._plan.backend == BackendName.TRL
        # Another framework's script leaves defaults of its own.
        is_native = is_trl or 2 * num_native >= len(set_keys)
        if self._plan.trains and is_native:
            defaults = catalogs()[self._plan.backend]
        else:
            defaults = {}
        unset = [
            self._unset_line(key, defaults[key].get("default"), planned)
            for key, planned in self._plan.rendered.items()
            if key in defaults and key not in set_keys and self._is_replaced(key, defaults[key])
        ]
        return [*unset, *(self._line(key, value) for key, value in script.keys.items())]

    def _is_replaced(self, key: str, known: Mapping[str, Any]) -> bool:
        """Returns whether a field's value stands where the trainer has another default."""
        default = known.get("default")
        planned = self._plan.rendered[key]
        field = self._keys.owners.get(key)
        # The network is the checkpoint's, not a choice.
        if not field or field.startswith("model.architecture"):
            return False
        if default in (None, "None") or planned is None:
            return False
        return not is_same(default, planned)

    def _unset_line(self, key: str, default: Any, planned: Any) -> KeyLine:
        """Row of a default that the script keeps without a word; with the override that restores it."""
        field = self._keys.owners[key]
        sentence = self._home(key, "")
        # A catalog writes an enumeration as CLASS.member, which is no value of a field.
        is_value = not re.fullmatch(r"[A-Z]\w+\.\w+", as_text(default))
        if is_value and field in self._fields and is_same(self._fields[field], planned):
            sentence += f"; the script's: {field}={as_yaml(default)}"
        return KeyLine(key, as_text(default), as_text(planned), KeyResult.UNSET, sentence)

    def _line(self, typed: str, value: Any) -> KeyLine:
        key = self._known(typed)
        text = as_text(value)
        owned = self._keys.table.owned.get(key)
        sentence = self._sentence(key)
        if key in self._keys.owners or (key in self._plan.rendered and owned is None):
            # A key that is left out has the trainer's default, which the field may state.
            planned = self._plan.rendered.get(key, self._fields.get(self._keys.owners.get(key, "")))
            if is_same(value, planned):
                result = KeyResult.EQUAL
            else:
                result = KeyResult.DIFFERENT
            if key in self._plan.rendered:
                plan = as_text(self._plan.rendered[key])
            else:
                plan = None
            return KeyLine(typed, text, plan, result, self._home(key, sentence))
        if (
            key in self._plan.rendered
            and key not in RENAMED
            and is_same(value, self._plan.rendered[key])
        ):
            return KeyLine(
                typed,
                text,
                as_text(self._plan.rendered[key]),
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
        if key not in self._keys.known and hint is not None:
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
        if key not in self._keys.known:
            return f"no key of {self._plan.backend}'s, and xp knows no field for it"
        if key in self._keys.table.owned:
            return self._keys.table.owned[key]
        passes = f"{self._keys.section}.{key.removeprefix('--')} passes it on; {UNKNOWN_EFFECT}"
        return self._keys.table.refused.get(key, passes)

    def _known(self, typed: str) -> str:
        """The trainer's own spelling of a key."""
        if self._plan.backend == BackendName.TRL:
            return typed.removeprefix("--").replace("-", "_")
        if self._plan.backend == BackendName.SKYRL:
            policy = f"trainer.policy.{typed}"
            if typed not in self._keys.known and policy in self._keys.known:
                return policy
            return typed
        flags = flag_catalog().flags
        same = (
            name
            for name in self._plan.rendered
            if typed in flags and name in flags and flags[name].dest == flags[typed].dest
        )
        return next(same, typed)

    def _home(self, key: str, sentence: str) -> str:
        """The field of a rendered key with its value, why it is the same for every run, or the answer's sentence."""
        field = self._keys.owners.get(key)
        if field:
            return self._with_value(field)
        if key in self._keys.pins:
            return f"the same for every run: {self._keys.pins[key].reason}"
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


def counts(lines: list[KeyLine]) -> str:
    """Number of lines of each result."""
    return ", ".join(
        f"{sum(line.result is result for line in lines)} {result}" for result in KeyResult
    )


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
