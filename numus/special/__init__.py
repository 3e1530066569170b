"""Special functions on every device, differentiable (docs/special.md)."""

from numus.special import (
    bessel_order,
    combinatorial,
    complex_plane,
    elliptic,
    hypergeometric,
    information,
    one_variable,
    orthogonal,
)
from numus.special.bessel_order import *  # noqa: F403
from numus.special.combinatorial import *  # noqa: F403
from numus.special.complex_plane import *  # noqa: F403
from numus.special.elliptic import *  # noqa: F403
from numus.special.hypergeometric import *  # noqa: F403
from numus.special.information import *  # noqa: F403
from numus.special.one_variable import *  # noqa: F403
from numus.special.orthogonal import *  # noqa: F403

__all__ = sorted(
    {
        *(*bessel_order.__all__, *combinatorial.__all__, *complex_plane.__all__, *elliptic.__all__),
        *(
            *hypergeometric.__all__,
            *information.__all__,
            *one_variable.__all__,
            *orthogonal.__all__,
        ),
    }
)
