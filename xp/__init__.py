"""One YAML spec, three trainers, the same experiment."""

__version__ = "0.1.0"
