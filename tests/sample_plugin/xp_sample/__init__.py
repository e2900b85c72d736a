"""A plugin of xp with one thing of each kind."""
