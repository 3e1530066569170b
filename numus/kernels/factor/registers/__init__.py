"""Factorisations of small matrices that a thread block of a GPU holds in registers."""
