"""The annex: providers and launchers that are found by name and that no room imports."""
