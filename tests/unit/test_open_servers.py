"""A plan says which servers of a run need no key."""

from __future__ import annotations
