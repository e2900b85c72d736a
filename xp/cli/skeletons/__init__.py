"""Working environments, one of each kind, for `python -m xp env new`."""
