"""Checks before a run: a machine against a plan, an environment without a model, plug-ins against their contracts."""
