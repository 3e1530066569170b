"""Pictures of different sizes: the same results as of each by itself."""

import numpy as np
import pytest

import numus as nm
from numus import vision
from numus.vision import pictures, size_transforms, sizes

SIZES = ((30, 41), (50, 33), (33, 33), (47, 90), (64, 32))
RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 256, (3, *size), dtype=np.uint8) for size in SIZES]


def of_each(function):
    return np.stack([np.asarray(function(nm.asarray(x))) for x in PICTURES])


def near(a, b):
    difference = np.abs(np.asarray(a).astype(np.float64) - np.asarray(b).astype(np.float64))
    assert difference.max() <= 1


@pytest.mark.parametrize(
    "steps",
    [
        (vision.Resize((20, 24)),),
        (vision.Resize((20, 24), "nearest"),),
        (vision.Resize((60, 51), "bicubic"),),
        (vision.Resize(30), vision.CenterCrop(24)),
        (vision.Resize(40, antialias=False), vision.CenterCrop((40, 33))),
        (vision.CenterCrop(30),),
        (vision.CenterCrop((64, 35)),),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_fixed_sizes_are_those_of_each_picture(steps, layout):
    given = PICTURES if layout == "CHW" else [np.moveaxis(x, 0, -1) for x in PICTURES]
    transform = vision.Compose(steps, layout=layout, output_layout="CHW")
    seen = transform(given)
    assert seen.dtype is nm.uint8
    near(seen, of_each(vision.Compose(steps)))


def test_random_crops_are_boxes_of_each_picture():
    transform = vision.RandomResizedCrop(16)
    key = nm.random.key(3)
    seen = np.asarray(transform(PICTURES, key=key))
    np.testing.assert_array_equal(seen, transform(PICTURES, key=key))
    assert (seen != np.asarray(transform(PICTURES, key=nm.random.key(4)))).any()
    assert transform(PICTURES).shape == (5, 3, 16, 16)  # keys of the generator
    for i, (group, canvas, extents) in enumerate(pictures.canvases("", PICTURES, "CHW")):
        own, lengths = nm.random.fold_in(key, i), (extents[:, 0], extents[:, 1])
        box = size_transforms.random_box(canvas, (0.08, 1.0), (3 / 4, 4 / 3), own, lengths)
        for k, place in zip(group, np.stack(box, axis=1).tolist(), strict=True):
            top, left, height, width = place
            assert top >= 0
            assert left >= 0
            assert top + height <= SIZES[k][0]
            assert left + width <= SIZES[k][1]
            near(seen[k], sizes.resized_crop(PICTURES[k], *place, 16))


def test_what_follows_the_crop_sees_a_batch():
    steps = [vision.RandomResizedCrop(8), vision.RandomHorizontalFlip(), vision.ToFloat()]
    floats = [x.astype(np.float32) / 255 for x in PICTURES]
    for given in (PICTURES, [nm.asarray(x) for x in PICTURES], floats):
        y = vision.Compose(steps, output_layout="HWC")(given, key=nm.random.key(0))
        assert y.shape == (5, 8, 8, 3)
        assert y.dtype is nm.float32
        assert nm.max(y) <= 1


def test_pictures_of_far_sizes_have_canvases_of_their_own():
    shapes = [(1, 40, 50), (1, 700, 600), (1, 64, 40), (1, 690, 610), (1, 1, 1)]
    given = [np.full(s, i, np.uint8) for i, s in enumerate(shapes)]
    found = pictures.canvases("", given, "CHW")
    assert sorted(k for numbers, *_ in found for k in numbers) == [0, 1, 2, 3, 4]
    (large, canvas, _), *_ = found
    assert {1, 3} <= set(large) < {0, 1, 2, 3, 4}
    assert canvas.shape == (len(large), 1, 704, 640)
    assert len(found) > 1
    seen = vision.Resize((2, 2))(given)
    assert seen[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]  # in the order given


def test_errors_say_which_transformations_take_them():
    with pytest.raises(nm.errors.ShapeError, match="let RandomResizedCrop, CenterCrop, or Resize"):
        vision.Compose([vision.ToFloat(), vision.CenterCrop(8)])(PICTURES)
    with pytest.raises(nm.errors.ShapeError, match="a crop has to follow"):
        vision.Resize(8)(PICTURES)
    with pytest.raises(nm.errors.ShapeError, match=r"of 8 has no part of \(9, 9\)"):
        vision.Compose([vision.Resize(8), vision.CenterCrop(9)])(PICTURES)
    with pytest.raises(nm.errors.ShapeError, match=r"of \[1, 3\] channels"):
        vision.CenterCrop(8)([PICTURES[0], PICTURES[1][:1]])
    with pytest.raises(nm.errors.DTypeError, match="float32, uint8"):
        vision.CenterCrop(8)([PICTURES[0], PICTURES[1].astype(np.float32)])
