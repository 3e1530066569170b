"""Kernels of compressed sparse rows: products, Gustavson's SpGEMM, counting sorts."""
