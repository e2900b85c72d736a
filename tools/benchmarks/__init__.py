"""Measures the promises of docs/results.md, side by side where they are ratios: `make bench`."""
