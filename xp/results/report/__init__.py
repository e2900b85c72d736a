"""The page of `report` and `view`, and its server."""
