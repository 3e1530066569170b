"""Benchmarks against NumPy, PyTorch and JAX: `python -m bench`."""
