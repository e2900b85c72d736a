"""All fields, in the order of conf/, and what xp itself refuses of them."""

from __future__ import annotations

from collections.abc import Iterator
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
from xp.fields.field import Field, Refusal
from xp.fields.model import MODEL
from xp.fields.run import RUN
from xp.fields.sft import SFT
from xp.fields.training.progress import PROGRESS
from xp.fields.training.rates import RATES
from xp.fields.training.sampling import SAMPLING
from xp.fields.training.sizes import SIZES
from xp.spec import RunSpec

FIELDS: Final[tuple[Field, ...]] = (
    *(*RUN, *ENV, *MODEL, *ARCHITECTURE),
    *(*ADVANTAGES, *LOSS, *IMPORTANCE, *GROUPS),
    *(*SIZES, *RATES, *SAMPLING, *PROGRESS),
    *(*EVALUATION, *PARALLEL, *ENGINE),
)
"""All but those of the section `sft`, whose native keys are of a stage of its own."""
BY_XP: Final = {field.path: field.xp for field in (*FIELDS, *SFT) if field.xp}
"""Field or section -> the module or package of xp that implements it."""


def value_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses values that xp itself cannot carry out, the same on every backend."""
    for field in (*FIELDS, *SFT):
        for check in field.refuse:
            reason = check(spec)
            if reason is not None:
                yield Refusal(field.path, reason)


def value_warnings(spec: RunSpec) -> list[str]:
    """Sentences on values that run on every backend but do not do what their name says."""
    sentences = [field.warn(spec) for field in FIELDS if field.warn is not None]
    return [sentence for sentence in sentences if sentence is not None]
