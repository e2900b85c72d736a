"""Checks of an environment without a model."""
