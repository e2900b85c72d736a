"""Mirrors of a run's metrics to trackers."""
