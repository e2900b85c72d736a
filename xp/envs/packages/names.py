"""Finds the module of a package by the name that its users write."""

from __future__ import annotations


def module_of(target: str) -> str:
    """The module of a verifiers package as its hub names it: `owner/my-package@1.0` is `my_package`."""
    return target.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()
