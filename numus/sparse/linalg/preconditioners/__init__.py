"""Preconditioners: incomplete factors, sparse approximate inverses, algebraic multigrid."""
