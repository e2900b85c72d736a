"""Rows of Slime, one per field of the spec: flags of the pinned version, support, differences and refusals.

Every knob that has meaning is written, whatever the default of Slime, Megatron or SGLang. A flag whose value is None or
false is left out: it is xp's all the same, and no override may bring it in.
"""

from xp.backends.common_rows import COMMON
from xp.backends.slime.control.rows.algorithm import ALGORITHM
from xp.backends.slime.control.rows.backend import BACKEND
from xp.backends.slime.control.rows.evaluation import EVALUATION
from xp.backends.slime.control.rows.fixed import FIXED
from xp.backends.slime.control.rows.model import MODEL
from xp.backends.slime.control.rows.training import TRAINING

ROWS = (FIXED, *COMMON, *MODEL, *ALGORITHM, *TRAINING, *EVALUATION, *BACKEND)
"""All rows, in the order of the command line."""
