"""Answers to the trainers' own keys, `native_keys.toml` beside a backend's catalog, for overrides and hints."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from xp.fields.field import Native, Pin, Refusal
from xp.spec import EngineName, Placement, RunSpec, Strategy


class AnswerKind(StrEnum):
    """Kind of an answer, which is also the name of its tables in the file."""

    OWNER = "owner"
    """Refused; the text is the field that has the key's meaning."""
    REFUSED = "refused"
    """Refused; the text is the reason with the fix."""
    OPEN = "open"
    """Rendered by xp, and passed on in its place; the text is what no longer holds."""
    WARNED = "warned"
    """Passed on; the text is what no longer holds."""
    HARMLESS = "harmless"
    """Passed on without a word; the text is the reason."""


NEEDS: Mapping[str, Callable[[RunSpec], bool]] = {
    "backend.parallel.strategy=megatron": lambda s: (
        s.backend.parallel.strategy is Strategy.MEGATRON
    ),
    "backend.parallel.strategy=fsdp2": lambda s: s.backend.parallel.strategy is Strategy.FSDP2,
    "backend.engine.name=vllm": lambda s: s.backend.engine.name is EngineName.VLLM,
    "backend.engine.placement=separate": lambda s: s.backend.engine.placement is Placement.SEPARATE,
    "backend.engine.speculative": lambda s: s.backend.engine.speculative is not None,
    "algorithm.critic": lambda s: s.algorithm.critic is not None,
    "model.lora": lambda s: s.model.lora is not None,
    "training.kl_coef above 0, or algorithm.distill": lambda s: (
        s.training.kl_coef > 0 or s.algorithm.distill is not None
    ),
    "training.max_staleness above 0": lambda s: s.training.max_staleness > 0,
}
"""Part of a spec without which some keys have no effect -> whether a spec has it."""


@cache
def _tables(file: Path) -> tuple[Mapping[str, tuple[AnswerKind, str]], Sequence[tuple[str, str]]]:
    """Answers of a file by key, or by a pattern of keys with `*`; and its pairs of a pattern and what it needs."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    needs = [(key, group["text"]) for group in tables.pop("needs", ()) for key in group["keys"]]
    groups = ((AnswerKind(kind), group) for kind, groups in tables.items() for group in groups)
    keys = ((kind, group, group.get("below", "")) for kind, group in groups)
    return {
        f"{below}{key}": (kind, group["text"])
        for kind, group, below in keys
        for key in group["keys"]
    }, needs


def _matches(key: str, pattern: str) -> bool:
    return key.startswith(pattern.partition("*")[0]) and fnmatchcase(key, pattern)


@cache
def _answer(files: Sequence[Path], key: str) -> tuple[AnswerKind, str] | None:
    for answers in (_tables(file)[0] for file in files):
        if key in answers:
            name = key
        else:
            name = max((answer for answer in answers if _matches(key, answer)), key=len, default="")
        if name:
            return answers[name]
    return None


@dataclass(frozen=True)
class NativeKeys:
    """Native keys of a stage's trainer, of which the user may set some."""

    place: str
    """Key path of the user's own: `backend.overrides` or `sft.overrides`."""
    files: tuple[Path, ...]
    """Tables of answers; the first one with an answer has it."""
    pins: Mapping[str, Pin]
    owners: Mapping[str, str]
    """Native key -> its field, by the rows. Empty means that the key is the same for every run."""

    def answer(self, key: str) -> tuple[AnswerKind, str] | None:
        """Kind and text of the answer to a key; a longer pattern comes before a shorter one."""
        found = _answer(self.files, key)
        if key not in self.owners or (found is not None and found[0] is AnswerKind.OPEN):
            return found
        if key in self.pins:
            same = f": {self.pins[key].reason}"
        else:
            same = ""
        if self.owners[key]:
            what = f"set {self.owners[key]}"
        else:
            what = f"it is the same for every run{same}"
        return AnswerKind.REFUSED, f"xp renders this key itself; {what}"

    def fault(self, key: str, spec: RunSpec) -> str | None:
        """Returns why overrides cannot set a key that the trainer has; None if they can."""
        kind, text = self.answer(key) or (
            AnswerKind.REFUSED,
            "xp does not know what it would change; leave it out",
        )
        if kind is AnswerKind.OWNER:
            return f"xp has a field for this; set {text}"
        if kind is AnswerKind.REFUSED:
            return text
        needs = (
            need for file in self.files for name, need in _tables(file)[1] if _matches(key, name)
        )
        lacking = next(
            (need for need in needs if key not in self.owners and not NEEDS[need](spec)), None
        )
        return lacking and f"no effect without {lacking}; set that too, or leave this out"

    def refusals(
        self,
        spec: RunSpec,
        overrides: Mapping[str, Any],
        own_fault: Callable[[str, Any], str | None],
    ) -> Iterator[Refusal]:
        """Refusals of the user's own keys.

        Args:
            spec: the spec.
            overrides: the keys with their values, as the trainer has them.
            own_fault: returns why the trainer itself would not take a key with a value; None if it would.
        """
        for key, value in overrides.items():
            fault = own_fault(key, value) or self.fault(key, spec)
            if fault is not None:
                yield Refusal(f"{self.place}.{key.removeprefix('--')}", fault)

    def warnings(self, keys: Iterable[str]) -> list[str]:
        """Warnings of the user's own keys: one line for each property that no longer holds."""
        losses = self._losses(keys, AnswerKind.OPEN, AnswerKind.WARNED)
        return [f"{self.place}.{key.removeprefix('--')}: {loss}" for key, loss in losses.items()]

    def replaced(self, overrides: Native) -> dict[str, tuple[Any, str]]:
        """Rendered keys that the user's own replace, each with the value and what no longer holds."""
        return {
            key: (overrides[key], loss)
            for key, loss in self._losses(overrides, AnswerKind.OPEN).items()
        }

    def _losses(self, keys: Iterable[str], *kinds: AnswerKind) -> dict[str, str]:
        """Key -> what no longer holds, for the keys whose answers are of these kinds."""
        answers = {key: found for key in keys if (found := self.answer(key)) is not None}
        return {key: text for key, (kind, text) in answers.items() if kind in kinds}


def keys_of(
    place: str, files: tuple[Path, ...], pins: Mapping[str, Pin], owners: Mapping[str, str]
) -> NativeKeys:
    """Native keys of a stage; an answer of the first table comes before the rows, whose field may not be the key's
    meaning."""
    first = {key for key, (kind, _) in _tables(files[0])[0].items() if kind is not AnswerKind.OPEN}
    return NativeKeys(place, files, pins, {key: owners[key] for key in owners if key not in first})
