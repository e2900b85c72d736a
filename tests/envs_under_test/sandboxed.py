"""An ORS environment that holds a sandbox: a process and a directory, from its making to its teardown."""

from __future__ import annotations
