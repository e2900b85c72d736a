"""Helpers that need nothing of xp but its error."""
