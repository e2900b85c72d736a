"""The frame of every stage's program."""
