"""Off the path: makes the files that constraints and samplers load."""
