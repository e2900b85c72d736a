"""The two keys of a local server and its client, made from one token, so that neither side can pose as the other."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

TOKEN_VARIABLE = "XP_SERVE_TOKEN"
PROOF_HEADER = "X-XP-Proof"


@dataclass(frozen=True)
class Keys:
    """Whoever takes over the port of a dead server sees the client's key, and cannot make the proof from it."""

    client: str = field(repr=False)
    server: str = field(repr=False)

    @staticmethod
    def of(token: str) -> Keys:
        return Keys(*(hmac.new(token.encode(), side, hashlib.sha256).hexdigest() for side in (b"client", b"server")))
