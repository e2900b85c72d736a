"""The section `training`, by subject."""
