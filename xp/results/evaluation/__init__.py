"""Playing any model on any environment; statistics, comparisons and verdicts."""
