"""Secrets by name, their redaction, and the environment of jobs without them."""
