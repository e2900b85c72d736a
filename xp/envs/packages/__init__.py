"""Environments of other Python packages, each in a separate process with a Python that has the package."""
