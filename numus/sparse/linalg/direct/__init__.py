"""Factorisations of sparse matrices, and solutions with them: LU, Cholesky, QR, substitution."""
