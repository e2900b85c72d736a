"""The keys of a local server and of its client, derived from one token; neither side can imitate the other."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

TOKEN_VARIABLE = "XP_SERVE_TOKEN"
PROOF_HEADER = "X-XP-Proof"


@dataclass(frozen=True)
class Keys:
    """Keys of a local server.

    A process of this user that takes over a dead server's port sees the client's key, but cannot make the proof. One of
    another user gets no request (xp.envs.own_connector).
    """

    client: str = field(repr=False)
    server: str = field(repr=False)

    @staticmethod
    def of(token: str) -> Keys:
        return Keys(*(hmac.new(token.encode(), side, hashlib.sha256).hexdigest() for side in (b"client", b"server")))
