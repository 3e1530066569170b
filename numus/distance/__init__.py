"""Distances of points, with SciPy's names: of two, of all pairs, to the nearest."""

from numus.distance.metrics import (
    braycurtis,
    canberra,
    chebyshev,
    cityblock,
    correlation,
    cosine,
    euclidean,
    hamming,
    jaccard,
    mahalanobis,
    manhattan,
    minkowski,
    sqeuclidean,
)
from numus.distance.pairs import cdist, directed_hausdorff, nearest_neighbors, pdist, squareform

__all__ = [
    "braycurtis", "canberra", "cdist", "chebyshev", "cityblock", "correlation", "cosine",
    "directed_hausdorff", "euclidean", "hamming", "jaccard", "mahalanobis", "manhattan",
    "minkowski", "nearest_neighbors", "pdist", "sqeuclidean", "squareform",
]  # fmt: skip
