"""One recorded batch through each trainer's own code, compared with the papers' formulas in float64."""
