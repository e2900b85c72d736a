"""Loss of an inference engine, which voids the episodes that it was playing and is no fault of theirs."""

from xp.errors import XpError


class EngineLost(XpError):
    """No engine answers any more: neither the one that an episode was on, nor another one."""
