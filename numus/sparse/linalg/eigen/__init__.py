"""Eigenvalues and singular values of sparse matrices and operators."""
