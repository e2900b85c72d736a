"""Graders and rows of tests: no environment of a server is among them, so no SDK is imported."""
