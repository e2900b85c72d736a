"""The native keys of a trainer's stages `train` and `sft`: those of its columns, and the user's own beside them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xp.fields import support
from xp.fields.field import Native, Pin, Refusal
from xp.fields.support import Columns, FieldSupport, value_refusals
from xp.planning.native_keys import NativeKeys, keys_of
from xp.spec import RunSpec


@dataclass(frozen=True)
class TrainerKeys:
    """Functions of a Backend that follow from its columns and its catalogs of keys."""

    columns: Columns
    sft_columns: Columns
    """Columns of the stage `sft` alone."""
    pins: Mapping[str, Pin]
    """Keys with one value for every run."""
    table: Path
    """File with the keys that no field renders (`xp.planning.native_keys.KeyTable`)."""
    catalog: Callable[[], Collection[str]]
    """Reads the keys that the trainer knows."""
    sft_catalog: Callable[[], Collection[str]]
    """The same for the stage `sft`."""
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Names and values of the user's own keys as the trainer has them."""
    write: Callable[[Native], str]
    """Formats native keys in the trainer's own syntax."""
    is_shared: Callable[[str], bool] = lambda _: True
    """Returns whether the stage `sft` has this key of the training too."""
    with_owned: Callable[[dict[str, str]], dict[str, str]] = dict
    """Adds keys to the rendered ones whose meaning is a field's too: native key -> field."""

    def native_keys(self, spec: RunSpec) -> NativeKeys:
        """Keys of the training."""
        owners = self.with_owned(support.owners(self.columns, spec))
        return keys_of("backend.overrides", self.table, self.catalog(), self.pins, owners)

    def sft_keys(self, spec: RunSpec) -> NativeKeys:
        """Keys of the stage `sft`."""
        of_training = support.owners(self.columns, spec)
        shared = {key: field for key, field in of_training.items() if self.is_shared(key)}
        owners = self.with_owned(shared | support.owners(self.sft_columns, spec))
        return keys_of("sft.overrides", self.table, self.sft_catalog(), self.pins, owners)

    def field_refusals(self, spec: RunSpec) -> list[Refusal]:
        """Refusals of the columns."""
        return support.refusals(self._columns(spec), spec)

    def meanings(self, spec: RunSpec, refusals: Sequence[Refusal]) -> Mapping[str, FieldSupport]:
        """See xp.planning.backend.Backend.

        Args:
            spec: the spec.
            refusals: all of the trainer's.
        """
        refused = [*value_refusals(spec), *refusals]
        replaced = self.native_keys(spec).replaced(self.read(spec.backend.overrides))
        return support.meanings(self._columns(spec), spec, refused, self.write, replaced)

    def override_lines(self, spec: RunSpec) -> list[str]:
        """See xp.planning.backend.Backend."""
        return [
            *self.native_keys(spec).warnings(self.read(spec.backend.overrides)),
            *self.sft_keys(spec).warnings(self.read(spec.sft.overrides)),
        ]

    def _columns(self, spec: RunSpec) -> Columns:
        return support.with_sft(self.columns, self.sft_columns, spec)
