"""Lowering of products and orders of compressed sparse rows."""
