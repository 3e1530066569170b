"""Metrics against their definitions, scikit-learn where it is installed, and merged in parts."""

import numpy as np
import pytest

import numus as nm
from numus import metrics

RNG = np.random.default_rng(0)
WANTED = RNG.integers(0, 5, 200)
FOUND = np.where(RNG.random(200) < 0.6, WANTED, RNG.integers(0, 4, 200))
SCORES = np.round(RNG.random((200, 5)) + 0.5 * np.eye(5)[WANTED], 1)  # with ties
BINARY = (RNG.random(200) < 0.3).astype(np.int64)


def in_parts(make, a, b):
    """A metric fed at once; the same from three parts that are merged, and from their states."""
    whole = make()
    whole.update(nm.asarray(a), nm.asarray(b))
    parts = []
    for at in (slice(0, 50), slice(50, 51), slice(51, None)):
        parts.append(make())
        parts[-1].update(nm.asarray(a[at]), nm.asarray(b[at]))
    again = [make().load_state(p.state()) for p in parts]
    merged = parts[0].merge(parts[1]).merge(parts[2]).compute()
    np.testing.assert_allclose(merged, whole.compute())
    states = [m.state() for m in again]
    total = {}
    for name in states[0]:
        values = [state[name] for state in states]
        total[name] = np.concatenate(values) if name in whole.collected else sum(values)
    np.testing.assert_allclose(make().load_state(total).compute(), whole.compute())
    return whole.compute()


def test_accuracy():
    assert in_parts(metrics.Accuracy, FOUND, WANTED) == (FOUND == WANTED).mean()
    best = np.argsort(-SCORES, axis=1, kind="stable")
    got = in_parts(lambda: metrics.Accuracy(top_k=3), SCORES, WANTED)
    assert abs(got - (best[:, :3] == WANTED[:, None]).any(1).mean()) < 0.08  # ties may differ
    some = metrics.Accuracy(ignore_index=4)
    some.update(nm.asarray(FOUND), nm.asarray(WANTED))
    assert some.compute() == (FOUND == WANTED)[WANTED != 4].mean()
    assert np.isnan(metrics.Accuracy().compute())


def test_confusion_matrix_and_what_follows_from_it():
    matrix = in_parts(lambda: metrics.ConfusionMatrix(5), FOUND, WANTED)
    want = np.zeros((5, 5), int)
    np.add.at(want, (WANTED, FOUND), 1)
    np.testing.assert_array_equal(matrix, want)
    right, found, wanted = np.diag(want), want.sum(0), want.sum(1)
    precision, recall = right / np.maximum(found, 1), right / wanted
    f1 = 2 * right / (found + wanted)
    iou = right / (found + wanted - right)
    for make, value in (
        (metrics.Precision, precision),
        (metrics.Recall, recall),
        (metrics.F1, f1),
        (metrics.MeanIoU, iou),
    ):
        got = in_parts(lambda make=make: make(5, average=None), FOUND, WANTED)
        np.testing.assert_allclose(got, value)
        assert np.isclose(in_parts(lambda make=make: make(5), FOUND, WANTED), value.mean())
        weighted = in_parts(lambda make=make: make(5, "weighted"), FOUND, WANTED)
        assert np.isclose(weighted, (value * wanted).sum() / 200)
    micro = in_parts(lambda: metrics.F1(5, "micro"), FOUND, WANTED)
    assert np.isclose(micro, (FOUND == WANTED).mean())
    with pytest.raises(ValueError, match="class 4, of 3"):
        metrics.F1(3).update(nm.asarray(FOUND), nm.asarray(WANTED))


def test_areas_under_curves_are_what_their_definitions_say():
    marks = SCORES[:, 0]
    a, b = marks[BINARY == 1][:, None], marks[BINARY == 0]
    want = ((a > b) + 0.5 * (a == b)).mean()
    assert np.isclose(in_parts(metrics.AUROC, marks, BINARY), want)
    total, before = 0.0, 0.0
    for threshold in sorted(set(marks), reverse=True):
        taken = marks >= threshold
        recall = BINARY[taken].sum() / BINARY.sum()
        total, before = total + (recall - before) * BINARY[taken].mean(), recall
    assert np.isclose(in_parts(metrics.AveragePrecision, marks, BINARY), total)
    each = in_parts(lambda: metrics.AUROC(5, average=None), SCORES, WANTED)
    for c in range(5):
        one = metrics.AUROC()
        one.update(nm.asarray(SCORES[:, c]), nm.asarray((c == WANTED).astype(np.int64)))
        assert np.isclose(each[c], one.compute())
    with pytest.raises(ValueError, match="nan"):
        metrics.AUROC().update(nm.asarray([np.nan]), nm.asarray([1]))
    with pytest.raises(ValueError, match="no batch"):
        metrics.AUROC().compute()


def test_against_sklearn():
    sk = pytest.importorskip("sklearn.metrics")
    for average in ("macro", "micro", "weighted"):
        for make, theirs in (
            (metrics.Precision, sk.precision_score),
            (metrics.Recall, sk.recall_score),
            (metrics.F1, sk.f1_score),
            (metrics.MeanIoU, sk.jaccard_score),
        ):
            if make is metrics.MeanIoU and average == "micro":
                continue
            ours = make(7, average)  # two classes never occur
            ours.update(nm.asarray(FOUND), nm.asarray(WANTED))
            want = theirs(WANTED, FOUND, average=average, zero_division=0)
            assert np.isclose(ours.compute(), want)
    marks = SCORES[:, 0]
    auroc, ap = metrics.AUROC(), metrics.AveragePrecision()
    for metric, theirs in ((auroc, sk.roc_auc_score), (ap, sk.average_precision_score)):
        metric.update(nm.asarray(marks), nm.asarray(BINARY))
        assert np.isclose(metric.compute(), theirs(BINARY, marks))


def test_perplexity():
    logits = RNG.normal(size=(200, 11)).astype(np.float32)
    tokens = RNG.integers(0, 11, 200)
    tokens[::7] = -100
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    there = tokens != -100
    want = np.exp(-logs[there, tokens[there]].mean())
    assert np.isclose(in_parts(metrics.Perplexity, logits, tokens), want, rtol=1e-5)


def detected(boxes, scores, labels):
    return {"boxes": nm.asarray(boxes), "scores": nm.asarray(scores), "labels": labels}


def test_mean_average_precision_by_hand():
    big, other = [0.0, 0.0, 100.0, 100.0], [200.0, 200.0, 300.0, 300.0]
    near = [0.0, 0.0, 100.0, 80.0]  # IoU 0.8 with the first
    metric = metrics.MeanAveragePrecision()
    metric.update(
        [detected([near, other, [400.0, 400.0, 410.0, 410.0]], [0.9, 0.8, 0.7], [1, 1, 1])],
        [{"boxes": nm.asarray([big, other]), "labels": nm.asarray([1, 1])}],
    )
    found = metric.compute()
    assert found["map_50"] == 1.0
    assert found["map_75"] == 1.0
    # from 0.85 on the first is wrong: precision 1/2 up to a recall of 1/2, 51 of 101 points
    assert np.isclose(found["map"], (7 * 1.0 + 3 * 0.5 * 51 / 101) / 10)
    assert found["map_small"] == -1.0
    # the first detection is no large one: where it is wrong, it does not count
    assert np.isclose(found["map_large"], (7 * 1.0 + 3 * 51 / 101) / 10)
    assert np.isclose(found["mar_100"], (7 * 1.0 + 3 * 0.5) / 10)


def test_crowds_are_not_counted_and_parts_merge():
    crowd = {"boxes": [[0.0, 0.0, 50.0, 50.0]], "labels": [2], "iscrowd": [1]}
    plain = {"boxes": [[0.0, 0.0, 50.0, 50.0]], "labels": [2]}
    inside = detected([[5.0, 5.0, 20.0, 20.0], [30.0, 30.0, 45.0, 45.0]], [0.9, 0.8], [2, 2])
    right = detected([[0.0, 0.0, 50.0, 50.0]], [0.5], [2])
    whole = metrics.MeanAveragePrecision()
    whole.update([inside, right], [crowd, plain])
    assert whole.compute()["map"] == 1.0  # detections in a crowd are neither right nor wrong
    first, second = metrics.MeanAveragePrecision(), metrics.MeanAveragePrecision()
    first.update([inside], [crowd])
    second.update([right], [plain])
    assert first.merge(second).compute() == whole.compute()
    empty = metrics.MeanAveragePrecision()
    nothing = detected(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
    empty.update([nothing], [plain])
    assert empty.compute()["map"] == 0.0


def test_errors():
    with pytest.raises(nm.errors.ShapeError, match="scores \\(batch, classes, …\\)"):
        metrics.Accuracy().update(nm.zeros((3, 2, 2)), nm.zeros((3,), dtype=nm.int64))
    with pytest.raises(TypeError, match="does not merge"):
        metrics.Accuracy().merge(metrics.AUROC())
    with pytest.raises(ValueError, match="a state has"):
        metrics.Accuracy().load_state({"wrong": 1})
