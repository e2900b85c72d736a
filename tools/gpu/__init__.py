"""Experiments on a machine with a GPU that is at hand for a short time and has no network."""
