"""Hypergeometric functions of Gauss, Kummer and Tricomi."""
