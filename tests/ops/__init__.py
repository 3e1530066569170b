"""The op table: a row for every public function."""

from ops import (
    attention,
    composed,
    contraction,
    convolution,
    creation,
    elementwise,
    fft,
    indexing,
    linalg,
    linalg_spectral,
    manipulation,
    pooling,
    random_numbers,
    reductions,
    resizing,
    signal,
    sorting,
    special,
    transcendental,
)

_PARTS = (
    *(elementwise, transcendental, reductions, contraction, convolution, attention),
    *(pooling, resizing, manipulation, indexing, sorting, creation, random_numbers),
    *(linalg, linalg_spectral, fft, signal, special, composed),
)
ROWS = [row for part in _PARTS for row in part.ROWS]
