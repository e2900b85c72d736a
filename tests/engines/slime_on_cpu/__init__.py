"""Whole trainings of Slime's on a machine without a GPU: an interpreter for `backend.runtime.python`."""
