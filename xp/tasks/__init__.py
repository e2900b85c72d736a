"""The prepare stage, and the store of task sets."""
