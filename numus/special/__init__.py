"""Special functions on every device, differentiable (docs/special.md)."""

from numus.special import combinatorial, elliptic, information, one_variable, orthogonal
from numus.special.combinatorial import *  # noqa: F403
from numus.special.elliptic import *  # noqa: F403
from numus.special.information import *  # noqa: F403
from numus.special.one_variable import *  # noqa: F403
from numus.special.orthogonal import *  # noqa: F403

__all__ = sorted(
    {
        *(*combinatorial.__all__, *elliptic.__all__, *information.__all__),
        *(*one_variable.__all__, *orthogonal.__all__),
    }
)
