"""Rows of TRL, one per field of the spec: GRPOConfig's fields, support, differences and refusals.

Every field is written, even if TRL has the same default; `catalog.json` has the pinned version's fields.
"""

from xp.backends.trl.control.rows.algorithm import ALGORITHM
from xp.backends.trl.control.rows.backend import BACKEND
from xp.backends.trl.control.rows.model import FIXED, MODEL
from xp.backends.trl.control.rows.training import EVALUATION, TRAINING

ROWS = (FIXED, *MODEL, *ALGORITHM, *TRAINING, *EVALUATION, *BACKEND)
"""All rows, in the order of their keys."""
