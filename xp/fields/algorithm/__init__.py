"""The section `algorithm`, by subject."""
