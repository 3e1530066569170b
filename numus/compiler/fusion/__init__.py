"""Fusion: the values of a graph as groups, each of which one kernel computes."""
