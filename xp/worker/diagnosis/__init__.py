"""Rules that detect a failing training."""
