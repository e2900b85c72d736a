"""Finds the module of a package from the name in a spec."""

from __future__ import annotations


def module_of(target: str) -> str:
    """Module of a verifiers package from its hub's name: `my_package` for `owner/my-package@1.0`."""
    return target.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()
