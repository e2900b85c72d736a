"""All fields, in the order of conf/, and their columns by trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xp.fields.algorithm.advantages import ADVANTAGES
from xp.fields.algorithm.groups import GROUPS
from xp.fields.algorithm.importance import IMPORTANCE
from xp.fields.algorithm.loss import LOSS
from xp.fields.architecture import ARCHITECTURE
from xp.fields.backend.engine import ENGINE
from xp.fields.backend.parallel import PARALLEL
from xp.fields.env import ENV
from xp.fields.evaluation import EVALUATION
from xp.fields.field import Column, Field
from xp.fields.model import MODEL
from xp.fields.run import RUN
from xp.fields.sft import SFT
from xp.fields.training.progress import PROGRESS
from xp.fields.training.rates import RATES
from xp.fields.training.sampling import SAMPLING
from xp.fields.training.sizes import SIZES

FIELDS: Final[tuple[Field, ...]] = (
    *RUN,
    *ENV,
    *MODEL,
    *ARCHITECTURE,
    *ADVANTAGES,
    *LOSS,
    *IMPORTANCE,
    *GROUPS,
    *SIZES,
    *RATES,
    *SAMPLING,
    *PROGRESS,
    *EVALUATION,
    *PARALLEL,
    *ENGINE,
)
"""All but those of the section `sft`, whose native keys are of a stage of its own."""


def columns_of(fields: Iterable[Field], trainer: str) -> dict[str, Column]:
    """Key path -> the column of one of xp's trainers, or of `xp`; empty for a plug-in's."""
    columns = {}
    for field in fields:
        column = getattr(field, trainer, None)
        if isinstance(column, str):
            column = Column(implemented_by=column) if trainer == "xp" else Column(column)
        if column is not None:
            columns[field.path] = column
    return columns


BY_XP: Final = columns_of((*FIELDS, *SFT), "xp")
"""Field or section -> xp's own part."""
