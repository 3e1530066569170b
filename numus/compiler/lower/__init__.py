"""Fused groups to kernel IR: `dispatch` selects, one package a family of schedules."""
