"""Transformations of images: torchvision's values, one parameter per image, keys, devices."""

from pathlib import Path

import numpy as np
import pytest
from vision.vision_cases import CORNERS, FLOAT_IMAGES, IMAGES, MOVED

import numus as nm
from numus import vision

STORED = np.load(Path(__file__).parent.parent / "fixtures" / "vision.npz")
CASES = {
    "resize_down": lambda x: vision.resize(x, (7, 9)),
    "resize_down_cubic": lambda x: vision.resize(x, (7, 9), "bicubic"),
    "resize_up": lambda x: vision.resize(x, (40, 31)),
    "resize_up_cubic": lambda x: vision.resize(x, (40, 31), "bicubic"),
    "resize_aliased": lambda x: vision.resize(x, (7, 9), antialias=False),
    "resize_aliased_cubic": lambda x: vision.resize(x, (7, 9), "bicubic", antialias=False),
    "resize_nearest": lambda x: vision.resize(x, (7, 29), "nearest"),
    "resize_nearest_exact": lambda x: vision.resize(x, (7, 29), "nearest-exact"),
    "resize_short": lambda x: vision.resize(x, 10),
    "resize_longest": lambda x: vision.resize(x, 10, max_size=12),
    "center_crop": lambda x: vision.center_crop(x, (9, 30)),
    "resized_crop": lambda x: vision.resized_crop(x, 2, 3, 11, 17, (6, 8)),
    "resized_crop_cubic": lambda x: vision.resized_crop(x, 2, 3, 11, 17, (6, 20), "bicubic"),
    "affine": lambda x: vision.affine(x, 20.0, (3, -2), 1.2, (5.0, -8.0), "bilinear"),
    "affine_fill": lambda x: vision.affine(
        x, -30.0, (0, 2), 0.8, (0.0, 4.0), "bilinear", fill=[0.5, 0.25, 1.0], center=(3, 5)
    ),
    "affine_nearest": lambda x: vision.affine(x, 20.0, (3, -2), 1.2, (5.0, -8.0), fill=0.5),
    "rotate": lambda x: vision.rotate(x, 33.0, "bilinear"),
    "rotate_expand": lambda x: vision.rotate(x, 33.0, "bilinear", expand=True),
    "perspective": lambda x: vision.perspective(x, CORNERS, MOVED),
    "brightness": lambda x: vision.adjust_brightness(x, 1.4),
    "contrast": lambda x: vision.adjust_contrast(x, 0.6),
    "saturation": lambda x: vision.adjust_saturation(x, 1.7),
    "hue": lambda x: vision.adjust_hue(x, -0.17),
    "sharpness": lambda x: vision.adjust_sharpness(x, 2.5),
    "grey": lambda x: vision.rgb_to_grayscale(x, 3),
    "posterize": lambda x: vision.posterize(x, 3),
    "solarize": lambda x: vision.solarize(x, 128 if x.dtype is nm.uint8 else 0.5),
    "autocontrast": lambda x: vision.autocontrast(x),
    "equalize": lambda x: vision.equalize(x),
    "blur": lambda x: vision.gaussian_blur(x, (5, 3), 0.9),
    "blur_default": lambda x: vision.gaussian_blur(x, 3),
}


def agree(got, name, kind):
    want = STORED[f"{name}_{kind}"]
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if kind == "u8":
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_torchvision(name):
    agree(np.asarray(CASES[name](nm.asarray(IMAGES[:1]))), name, "u8")


QUICK = ("resize_down", "resized_crop", "affine_fill", "perspective", "hue", "blur")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_floats_are_those_of_torchvision(name):
    agree(np.asarray(CASES[name](nm.asarray(FLOAT_IMAGES[:1]))), name, "f32")


def test_values_on_webgpu():
    if "webgpu" not in {d.name for d in nm.devices()}:
        pytest.skip("no adapter")
    x = nm.asarray(IMAGES[:1]).to_device("webgpu")
    crop = vision.RandomCrop(8)
    here, there = (
        crop(v, key=nm.random.key(0).to_device(v.device)) for v in (x.to_device("cpu"), x)
    )
    np.testing.assert_array_equal(there.to_device("cpu"), here)
    for name in ("rotate", "contrast"):
        y = CASES[name](x)
        assert y.device.name == "webgpu"
        agree(np.asarray(y.to_device("cpu")), name, "u8")


def test_parameters_of_each_image():
    x = nm.asarray(np.concatenate([IMAGES, IMAGES[::-1]]))
    turns = [10.0, -40.0, 0.0, 77.0]
    both = vision.rotate(x, nm.asarray(turns), "bilinear")
    boxes = np.asarray([[0, 0, 19, 23], [3, 4, 9, 11], [10, 2, 5, 20], [18, 22, 1, 1]])
    crops = vision.resized_crop(x, *nm.asarray(boxes.T), 8)
    shifts = vision.adjust_hue(x, nm.asarray([0.1, 0.2, -0.3, 0.0]))
    moved = np.stack([np.asarray(MOVED), CORNERS, MOVED, CORNERS]).astype(np.float32)
    seen = vision.perspective(x, CORNERS, nm.asarray(moved))
    for i in range(4):
        near(both[i], vision.rotate(x[i], turns[i], "bilinear"))
        top, left, h, w = boxes[i].tolist()
        near(crops[i], vision.resize(vision.crop(x[i], top, left, h, w), (8, 8)))
        near(shifts[i], vision.adjust_hue(x[i], [0.1, 0.2, -0.3, 0.0][i]))
        near(seen[i], vision.perspective(x[i], CORNERS, moved[i].tolist()))
    with pytest.raises(nm.errors.ShapeError, match="one for each image"):
        vision.rotate(x, nm.asarray([1.0, 2.0]))


def near(a, b, most=1):
    difference = np.abs(np.asarray(a).astype(np.float64) - np.asarray(b).astype(np.float64))
    assert difference.max() <= most


def test_channels_may_come_last():
    x = nm.asarray(IMAGES)
    last = nm.moveaxis(x, 1, -1)
    for f in (vision.horizontal_flip, vision.autocontrast):
        np.testing.assert_array_equal(f(last, layout="HWC"), nm.moveaxis(f(x), 1, -1))
    y = vision.resize(last, 8, layout="HWC")
    np.testing.assert_array_equal(y, nm.moveaxis(vision.resize(x, 8), 1, -1))
    one = vision.Resize(8, layout="HWC")(last[0])
    np.testing.assert_array_equal(one, y[0])


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_crops_read_channels_that_come_last_as_they_are(mode):
    x = nm.asarray(IMAGES)
    last = nm.copy(nm.moveaxis(x, 1, -1))
    top = nm.arange(len(IMAGES)) % 3

    def crops(x, layout):
        return vision.resized_crop(x, top, 3, 11, 17, (6, 8), mode, layout=layout)

    expected = nm.moveaxis(crops(x, "CHW"), 1, -1)
    for seen in (crops(last, "HWC"), nm.jit(crops, static_argnames="layout")(last, layout="HWC")):
        near(seen, expected, 1)


RANDOM = {
    "crop": vision.RandomCrop(16, padding=2),
    "resized crop": vision.RandomResizedCrop(8),
    "flips": vision.Compose([vision.RandomHorizontalFlip(), vision.RandomVerticalFlip()]),
    "rotation": vision.RandomRotation(40),
    "affine": vision.RandomAffine(20, (0.2, 0.1), (0.8, 1.2), (-5, 5, -9, 9)),
    "perspective": vision.RandomPerspective(p=0.8),
    "jitter": vision.ColorJitter(0.4, 0.4, 0.4, 0.2),
    "blur": vision.RandomApply(vision.GaussianBlur(3), 0.5),
    "grey": vision.RandomGrayscale(0.5),
    "randaugment": vision.RandAugment(num_ops=1, magnitude=20),
    "trivial": vision.TrivialAugmentWide(),
    "erasing": vision.RandomErasing(0.9),
}


QUICK_RANDOM = ("crop", "resized crop", "jitter", "perspective", "randaugment", "erasing")


@pytest.mark.parametrize(
    "name", [n if n in QUICK_RANDOM else pytest.param(n, marks=pytest.mark.slow) for n in RANDOM]
)
def test_a_key_gives_the_same_images(name):
    x = nm.asarray(np.repeat(IMAGES[:1], 8, axis=0))
    transform = nm.jit(RANDOM[name].__call__)
    first = np.asarray(transform(x, key=nm.random.key(3)))
    np.testing.assert_array_equal(first, np.asarray(transform(x, key=nm.random.key(3))))
    assert (first != np.asarray(transform(x, key=nm.random.key(4)))).any()
    assert len({image.tobytes() for image in first}) > 1  # each image has its own parameters
    assert first.dtype == np.uint8


def test_random_boxes_lie_within_and_have_the_areas_asked_for():
    x = nm.zeros((2000, 1, 40, 60))
    box = vision.size_transforms.random_box(x, (0.2, 0.5), (0.5, 2.0), nm.random.key(0))
    top, left, h, w = (np.asarray(v) for v in box)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + h <= 40).all()
    assert (left + w <= 60).all()
    share = h * w / 2400
    assert 0.18 < share.min() < 0.25
    assert 0.45 < share.max() < 0.53
    assert abs(share.mean() - 0.35) < 0.02
    assert top.max() > 20
    assert left.max() > 35


def test_jitter_applies_every_operation_once_in_an_order_of_its_own():
    x = nm.asarray(FLOAT_IMAGES[:1])
    many = nm.broadcast_to(x, (64, *x.shape[1:]))
    jitter = vision.ColorJitter(brightness=(1.6, 1.6), contrast=(0.5, 0.5))
    got = np.asarray(jitter(many, key=nm.random.key(0)))
    first = vision.adjust_contrast(vision.adjust_brightness(x, 1.6), 0.5)
    second = vision.adjust_brightness(vision.adjust_contrast(x, 0.5), 1.6)
    is_first = np.abs(got - np.asarray(first)).max(axis=(1, 2, 3)) < 1e-5
    is_second = np.abs(got - np.asarray(second)).max(axis=(1, 2, 3)) < 1e-5
    assert (is_first ^ is_second).all()
    assert 16 < is_first.sum() < 48


def test_operations_of_randaugment_are_the_functions():
    """Each of the fourteen, by its number, against the function it stands for."""
    names = vision.augment.OPERATIONS
    x = nm.asarray(np.repeat(IMAGES[:1], len(names), axis=0))
    sizes = [0, 0.2, -0.2, 4, -3, 25, 0.5, -0.5, 0.5, -0.7, 3, 0.4, 0, 0]
    got = vision.augment.augmented(
        x, nm.arange(len(names)), nm.asarray(sizes), mode="nearest", fill=None
    )
    degrees = float(np.degrees(np.arctan(0.2)))
    one = x[:1]
    want = [
        one,
        vision.affine(one, shear=(degrees, 0.0), center=(0, 0)),
        vision.affine(one, shear=(0.0, -degrees), center=(0, 0)),
        vision.affine(one, translate=(4, 0)),
        vision.affine(one, translate=(0, -3)),
        vision.rotate(one, 25.0),
        vision.adjust_brightness(one, 1.5),
        vision.adjust_saturation(one, 0.5),
        vision.adjust_contrast(one, 1.5),
        vision.adjust_sharpness(one, 0.3),
        vision.posterize(one, 3),
        vision.solarize(one, 0.4 * 255),
        vision.autocontrast(one),
        vision.equalize(one),
    ]
    for i, image in enumerate(want):
        differ = np.abs(np.asarray(got[i]).astype(int) - np.asarray(image[0]).astype(int)) > 1
        assert differ.mean() < 0.02, names[i]  # nearest pixels may tie


def test_mixed_labels_say_what_images_are_made_of():
    x = nm.arange(4.0).reshape(4, 1, 1, 1) + nm.zeros((4, 1, 10, 10))
    labels = nm.arange(4)
    for mix in (vision.MixUp(0.4, 4), vision.CutMix(1.0, 4)):
        y, targets = mix(x, labels, key=nm.random.key(5))
        np.testing.assert_allclose(targets.sum(axis=1), 1, rtol=1e-6)
        means = np.asarray(y).mean(axis=(1, 2, 3))
        np.testing.assert_allclose(means, np.asarray(targets) @ np.arange(4.0), atol=1e-4)
        assert len({round(v, 4) for v in np.asarray(targets).max(axis=1).tolist()}) > 1
    with pytest.raises(ValueError, match="num_classes"):
        vision.CutMix()(x, labels)


def test_erased_boxes():
    x = nm.ones((200, 1, 20, 20))
    y = np.asarray(vision.RandomErasing(0.5, (0.1, 0.3), value=7.0)(x, key=nm.random.key(0)))
    share = (y == 7).mean(axis=(1, 2, 3))
    assert 60 < (share > 0).sum() < 140
    assert share[share > 0].min() > 0.07
    assert share.max() < 0.34


def test_derivatives():
    x = nm.asarray(FLOAT_IMAGES[:1, :1, :6, :7].astype(np.float64))
    maps = {
        "resize": lambda x: vision.resize(x, (3, 4)),
        "affine": lambda x: vision.affine(x, 20.0, mode="bilinear"),
        "resized_crop": lambda x: vision.resized_crop(x, 1, 1, nm.asarray([4]), 5, 3),
    }
    for f in maps.values():  # linear: the derivative in a direction is the map of the direction
        g = nm.grad(lambda x, f=f: nm.sum(nm.square(f(x))))(x)
        v = nm.asarray(np.random.default_rng(0).normal(size=x.shape))
        assert nm.allclose(nm.sum(g * v), 2 * nm.sum(f(x) * f(v)), rtol=1e-5)
    turn = nm.grad(lambda a: nm.sum(vision.rotate(x, a, "bilinear") ** 2))(nm.asarray(20.0))
    assert np.isfinite(turn.item())
    assert turn.item() != 0


def test_errors_name_the_function_and_what_is_wrong():
    with pytest.raises(nm.errors.ShapeError, match=r"resize: takes images .* not shape \(3, 4\)"):
        vision.resize(nm.zeros((3, 4)), 2)
    with pytest.raises(nm.errors.DTypeError, match="uint8"):
        vision.resize(nm.zeros((3, 4, 4), dtype=nm.int64), 2)
    with pytest.raises(ValueError, match="no mode 'cubic'"):
        vision.resize(nm.zeros((3, 4, 4)), 2, "cubic")
    with pytest.raises(nm.errors.ShapeError, match="2 numbers as mean for 3 channels"):
        vision.normalize(nm.zeros((3, 4, 4)), [0, 0], [1, 1])
    with pytest.raises(ValueError, match="padding= gives them a margin"):
        vision.RandomCrop(8)(nm.zeros((3, 4, 4)))
    with pytest.raises(ValueError, match="odd"):
        vision.gaussian_blur(nm.zeros((3, 4, 4)), 2)
    unequal = [np.zeros((3, 4, 4), np.uint8), np.zeros((3, 5, 4), np.uint8)]
    with pytest.raises(nm.errors.ShapeError, match=r"\(3, 5, 4\) are no batch: resize or crop"):
        vision.resized_crop(unequal, 0, 0, 2, 2, 2)
    with pytest.raises(ValueError, match="num_ops must not be negative"):
        vision.RandAugment(-1)
