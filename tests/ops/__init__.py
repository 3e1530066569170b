"""The op table: a row for every public function."""

from ops import (
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    manipulation,
    random_numbers,
    reductions,
    sorting,
    transcendental,
)

_PARTS = (
    *(
        elementwise,
        transcendental,
        reductions,
        contraction,
        convolution,
        manipulation,
        indexing,
        sorting,
    ),
    *(creation, random_numbers),
)
ROWS = [row for part in _PARTS for row in part.ROWS]
