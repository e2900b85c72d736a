"""Estimates an accelerator's memory from the architecture, the episodes' lengths and measured slopes."""
