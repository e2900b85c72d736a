"""Environments that other Python packages hold, each in a process of its own, by a Python that has the package."""
