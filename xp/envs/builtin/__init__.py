"""Environments that xp ships, and the tiny model."""
