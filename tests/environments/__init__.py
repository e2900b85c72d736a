"""Environments of other packages, in a Python that has them: `make test-environments`."""
