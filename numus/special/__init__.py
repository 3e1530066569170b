"""Special functions on every device, differentiable (docs/special.md)."""

from numus.special import combinatorial, information, one_variable
from numus.special.combinatorial import *  # noqa: F403
from numus.special.information import *  # noqa: F403
from numus.special.one_variable import *  # noqa: F403

__all__ = sorted({*combinatorial.__all__, *information.__all__, *one_variable.__all__})
