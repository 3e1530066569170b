"""Images that numus and torchvision (tests/fixtures/make_image_fixtures.py) both transform."""

import numpy as np

_rng = np.random.default_rng(7)


def _smooth(count, height, width):
    """Waves with a little noise: two rows of pixels do not differ at random, as in photographs."""
    y, x = np.mgrid[:height, :width]
    phase, pace = _rng.uniform(0, 6, (count, 3, 1, 1)), _rng.uniform(0.1, 0.5, (count, 3, 1, 1))
    waves = np.sin(phase + pace * x) * np.cos(phase + pace[:, ::-1] * y)
    return np.clip(0.5 + 0.4 * waves + _rng.normal(0, 0.05, waves.shape), 0, 1)


FLOAT_IMAGES = _smooth(2, 19, 23).astype(np.float32)
IMAGES = np.round(FLOAT_IMAGES * 255).astype(np.uint8)
CORNERS = [[0, 0], [22, 0], [22, 18], [0, 18]]
MOVED = [[2, 1], [20, 3], [21, 16], [1, 17]]


def _boxes(count, width, height):
    corners = _rng.uniform(0, 1, (count, 2, 2)) * (width, height)
    return np.concatenate([corners.min(1), corners.max(1)], axis=1).astype(np.float32)


BOXES, OTHER_BOXES = _boxes(5, 20, 20), _boxes(6, 20, 20)
ROIS = np.concatenate([[[0], [1], [1], [0]], _boxes(4, 46, 38)], axis=1).astype(np.float32)
ROIS[3, 1:] = [-8, -8, 60, 20]  # beyond the edges
