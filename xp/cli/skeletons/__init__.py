"""Environments that work, one a kind, for `python -m xp env new`."""
