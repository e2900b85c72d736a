"""One recorded batch through a trainer's own code, held against the papers' formulas in float64."""
