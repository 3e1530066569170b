"""Iterative solvers: Krylov and stationary methods, least squares, the loop they share."""
