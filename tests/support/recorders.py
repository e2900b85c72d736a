"""A recorder of episodes that counts."""

from __future__ import annotations


class Closing:
    """A recorder that counts how often it is closed."""

    num_closed = 0

    def close(self) -> None:
        self.num_closed += 1
