"""The op table: a row for every public function."""

from ops import (
    attention,
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
    *(elementwise, transcendental, reductions, contraction, convolution, attention),
    *(manipulation, indexing, sorting, creation, random_numbers),
)
ROWS = [row for part in _PARTS for row in part.ROWS]
