"""Environments: providers, their sessions, and environments served here."""
