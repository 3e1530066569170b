"""Draws by rejection, in kernel IR: `FUNCTIONS` by primitive name."""

from __future__ import annotations

from numus.kernels.random.kernels import FUNCTIONS

__all__ = ["FUNCTIONS"]
