"""Agent programs, for tests."""
