"""Sequential algorithms on patterns: levels, orderings, elimination trees, factorisations."""
