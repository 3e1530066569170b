"""Boxes and masks: torchvision's stored values, suppression against all pairs, derivatives."""

from pathlib import Path

import numpy as np
import pytest
from vision.vision_cases import BOXES, FLOAT_IMAGES, OTHER_BOXES, ROIS

import numus as nm
from numus import vision
from numus.vision import suppression

STORED = np.load(Path(__file__).parent.parent / "fixtures" / "vision.npz")


@pytest.mark.parametrize("name", ["box_iou", "generalized_box_iou", "distance_box_iou"])
def test_overlaps_of_all_pairs(name):
    got = getattr(vision, name)(nm.asarray(BOXES), nm.asarray(OTHER_BOXES))
    np.testing.assert_allclose(got, STORED[name], rtol=1e-5, atol=1e-6)


def test_complete_overlap_and_losses():
    a, b = nm.asarray(BOXES), nm.asarray(OTHER_BOXES)
    got = vision.complete_box_iou(a, b)
    np.testing.assert_allclose(got, STORED["complete_box_iou"], rtol=1e-5, atol=1e-6)
    for name in ("generalized", "distance", "complete"):
        loss = getattr(vision, f"{name}_box_iou_loss")
        want = STORED[f"{name}_box_iou_loss"]
        np.testing.assert_allclose(loss(a, b[:5]), want, rtol=1e-5, atol=1e-6)
        assert nm.allclose(loss(a, b[:5], "mean"), want.mean())
        assert np.isfinite(np.asarray(nm.grad(lambda a, f=loss: f(a, b[:5], "sum"))(a))).all()


def test_formats_come_back():
    boxes = nm.asarray(BOXES)
    for there in ("xywh", "cxcywh"):
        other = vision.box_convert(boxes, "xyxy", there)
        np.testing.assert_allclose(vision.box_convert(other, there, "xyxy"), BOXES, rtol=1e-5)
    with pytest.raises(ValueError, match="no format"):
        vision.box_convert(boxes, "xyxy", "yxyx")


def by_all_pairs(boxes, scores, threshold):
    order = np.argsort(-scores, kind="stable")
    kept = []
    for i in order:
        a = boxes[i].astype(np.float64)
        good = True
        for j in kept:
            b = boxes[j].astype(np.float64)
            w, h = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
            both = max(w, 0) * max(h, 0)
            union = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both
            good &= not (union > 0 and both / union > threshold)
        kept += [i] if good else []
    return kept


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_suppression_keeps_what_all_pairs_keep(threshold):
    rng = np.random.default_rng(int(threshold * 100))
    sides = np.exp(rng.uniform(-4, 4, (90, 2)))
    centres = rng.normal(0, 4, (90, 2)) * np.exp(rng.uniform(-3, 1, (90, 1)))
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], 1)
    boxes[20] = [np.nan, 0, 1, 1]
    boxes[30, 2:] = boxes[30, :2]  # no area
    boxes[40:60] = boxes[60:80] * 1.02
    scores = rng.integers(0, 50, 90) / 50.0  # with ties
    got = vision.nms(nm.asarray(boxes), nm.asarray(scores), threshold)
    assert got.tolist() == by_all_pairs(boxes, scores, threshold)


def test_sequential_functions_are_what_they_are_in_python():
    rng = np.random.default_rng(1)
    boxes = np.sort(rng.uniform(0, 9, (70, 2, 2)), axis=1).reshape(70, 4)
    flat, kept = boxes.ravel(), np.zeros(70, np.int64)
    count = suppression.keep_all_pairs.python(70, flat, 0.4, kept)
    assert suppression.kept_boxes(boxes, 0.4).tolist() == kept[:count].tolist()


def test_classes_do_not_suppress_each_other():
    rng = np.random.default_rng(3)
    centres, sides = rng.uniform(0, 40, (160, 2)), rng.uniform(5, 20, (160, 2))
    boxes = np.concatenate([centres, centres + sides], 1).astype(np.float32)
    scores, classes = rng.permutation(160) / 160.0, rng.integers(0, 4, 160)
    got = set(vision.batched_nms(nm.asarray(boxes), scores, classes, 0.5).tolist())
    want = set()
    for c in range(4):
        (of,) = np.nonzero(classes == c)
        want |= {int(of[i]) for i in by_all_pairs(boxes[of], scores[of], 0.5)}
    assert got == want
    empty = vision.nms(nm.zeros((0, 4)), nm.zeros((0,)), 0.5)
    assert empty.shape == (0,)
    with pytest.raises(nm.errors.ShapeError, match=r"boxes \(n, 4\)"):
        vision.nms(nm.zeros((3, 5)), nm.zeros((3,)), 0.5)


@pytest.mark.parametrize("ratio", [2, 0])
def test_roi_align(ratio):
    for aligned in (True, False):
        got = vision.roi_align(
            nm.asarray(FLOAT_IMAGES), nm.asarray(ROIS), (3, 4), 0.5, ratio, aligned=aligned
        )
        np.testing.assert_allclose(got, STORED[f"roi_align_{ratio}_{aligned}"], atol=1e-5)


def test_roi_align_takes_lists_and_is_differentiable():
    x = nm.asarray(FLOAT_IMAGES[:, :1].astype(np.float64))
    parts = [ROIS[ROIS[:, 0] == i, 1:] for i in range(2)]
    rois = nm.asarray(np.concatenate([np.c_[np.full(len(p), i), p] for i, p in enumerate(parts)]))
    read = lambda x: vision.roi_align(x, rois, 2, 0.5)
    np.testing.assert_allclose(vision.roi_align(x, parts, 2, 0.5), read(x), rtol=1e-6)
    g = nm.grad(lambda x: nm.sum(read(x) ** 2))(x)
    v = nm.asarray(np.random.default_rng(0).normal(size=x.shape))
    assert nm.allclose(nm.sum(g * v), 2 * nm.sum(read(x) * read(v)), rtol=1e-6)


def test_masks_to_boxes():
    masks = np.zeros((3, 6, 7), bool)
    masks[0, 1:3, 2:6] = masks[1, 5, 6] = True
    want = [[2, 1, 5, 2], [6, 5, 6, 5], [0, 0, 0, 0]]
    assert vision.masks_to_boxes(nm.asarray(masks)).tolist() == want


def test_grids_of_pictures(tmp_path):
    x = nm.asarray((np.arange(5 * 3 * 2 * 2) * 4).reshape(5, 3, 2, 2).astype(np.uint8))
    sheet = np.asarray(vision.make_grid(x, 3, padding=1, fill=9))
    assert sheet.shape == (3, 7, 10)
    np.testing.assert_array_equal(sheet[:, 4:6, 4:6], x[4])
    assert (sheet[:, 4:6, 7:] == 9).all()
    path = tmp_path / "sheet.png"
    vision.save_grid(path, x, 3)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    image = pytest.importorskip("PIL.Image")
    np.testing.assert_array_equal(
        np.asarray(image.open(path)), np.moveaxis(np.asarray(vision.make_grid(x, 3)), 0, -1)
    )
