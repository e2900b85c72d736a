"""Rows of SkyRL, one per field of the spec: SkyRLTrainConfig's keys, support, differences and refusals.

Every field is written, even if SkyRL has the same default; the keys are those of the pinned 0.4.0.
"""

from xp.backends.skyrl.control.rows.algorithm import ALGORITHM
from xp.backends.skyrl.control.rows.backend import BACKEND
from xp.backends.skyrl.control.rows.model import FIXED, MODEL
from xp.backends.skyrl.control.rows.training import EVALUATION, TRAINING

ROWS = (FIXED, *MODEL, *ALGORITHM, *TRAINING, *EVALUATION, *BACKEND)
"""All rows."""
