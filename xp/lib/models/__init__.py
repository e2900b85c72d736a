"""A model's files and the counts of its parameters."""
