"""Scheduling of lowered kernels: rematerialisation, order, waves, in-place results, memory."""
