"""Rows of Slime, one per field of the spec: flags of the pinned version, support, differences and refusals.

Every field is written, even if Slime, Megatron or SGLang has the same default. A flag whose value is None or false is
omitted, but it still belongs to xp, and an override of it is refused.
"""

from xp.backends.slime.control.rows.algorithm import ALGORITHM
from xp.backends.slime.control.rows.backend import BACKEND
from xp.backends.slime.control.rows.model import FIXED, MODEL
from xp.backends.slime.control.rows.training import EVALUATION, TRAINING

ROWS = (FIXED, *MODEL, *ALGORITHM, *TRAINING, *EVALUATION, *BACKEND)
"""All rows, in the order of the command line."""
