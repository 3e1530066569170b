"""Airy functions."""
