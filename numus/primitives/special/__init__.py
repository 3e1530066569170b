"""Special functions as elementwise primitives: a row each, with derivatives by other rows."""
