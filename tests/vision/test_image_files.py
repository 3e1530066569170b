"""Datasets of files that the tests write, whole and damaged."""

import gzip
import json
import struct

import numpy as np
import pytest

import numus as nm
from numus.data import DataLoader
from numus.vision import datasets


def idx(array, code=8):
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def write_mnist(folder, count=7, zipped=True):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, count, dtype=np.uint8)
    packed = gzip.compress if zipped else bytes
    end = ".gz" if zipped else ""
    (folder / f"train-images-idx3-ubyte{end}").write_bytes(packed(idx(images)))
    (folder / f"train-labels-idx1-ubyte{end}").write_bytes(packed(idx(labels)))
    return images, labels


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist(tmp_path, zipped):
    images, labels = write_mnist(tmp_path, zipped=zipped)
    data = datasets.MNIST(tmp_path)
    assert len(data) == 7
    np.testing.assert_array_equal(data[3][0], images[3:4])
    assert data[3][1] == labels[3]
    x, y = next(iter(DataLoader(data, batch_size=4)))
    assert x.shape == (4, 1, 28, 28)
    assert y.tolist() == labels[:4].tolist()
    with pytest.raises(FileNotFoundError, match="t10k-images"):
        datasets.MNIST(tmp_path, train=False)


def test_idx_of_other_types_and_damage(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(idx(np.asarray([[1.5, -2.0]], ">f4"), 13))
    assert datasets.read_idx(path).tolist() == [[1.5, -2.0]]
    whole = path.read_bytes()
    for damaged, message in [
        (b"", "not an IDX file"),
        (b"PK\3\4" + whole, "not an IDX file"),
        (whole[:7], "cut off"),
        (whole[:-1], "takes 20 bytes, the file has 19"),
        (whole + b"x", "has 21"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "takes"),
        (gzip.compress(whole)[:-9], "gzip stream is damaged"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            datasets.read_idx(path)


def test_cifar(tmp_path):
    rng = np.random.default_rng(1)
    records = rng.integers(0, 256, (3, 3073), dtype=np.uint8)
    records[:, 0] = [2, 9, 0]
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(records.tobytes())
    data = datasets.CIFAR10(tmp_path)
    assert len(data) == 15
    assert data.labels[:3].tolist() == [2, 9, 0]
    np.testing.assert_array_equal(data[1][0][1], records[1, 1 + 1024 : 1 + 2048].reshape(32, 32))
    pairs = rng.integers(0, 256, (2, 3074), dtype=np.uint8)
    pairs[:, :2] = [[3, 77], [19, 5]]
    (tmp_path / "test.bin").write_bytes(pairs.tobytes())
    hundred = datasets.CIFAR100(tmp_path, train=False)
    assert hundred.labels.tolist() == [77, 5]
    assert hundred.coarse_labels.tolist() == [3, 19]
    (tmp_path / "test_batch.bin").write_bytes(records.tobytes()[:-1])
    with pytest.raises(ValueError, match="whole number of records"):
        datasets.CIFAR10(tmp_path, train=False)
    records[0, 0] = 10
    (tmp_path / "test_batch.bin").write_bytes(records.tobytes())
    with pytest.raises(ValueError, match="label 10"):
        datasets.CIFAR10(tmp_path, train=False)


def test_image_folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        image.fromarray(pixels).save(tmp_path / name / "1.png")
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    data = datasets.ImageFolder(tmp_path)
    assert data.classes == ["cat", "dog"]
    assert [number for _, number in data] == [0, 1]
    np.testing.assert_array_equal(data[1][0], np.moveaxis(pixels, -1, 0))
    flipped = datasets.ImageFolder(tmp_path, nm.vision.horizontal_flip, mode="L")
    assert flipped[0][0].shape == (1, 5, 6)
    (tmp_path / "cat" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(ValueError, match="can be read"):
        data[0]
    with pytest.raises(ValueError, match="no pictures"):
        datasets.ImageFolder(tmp_path / "cat")


def test_runs_are_those_of_cocoapi():
    mask = np.zeros((9, 11), np.uint8)
    mask[2:7, 3:6] = 1
    packed = datasets.rle_encode(mask)
    # runs 29 5 4 5 4 5 47, written as 29 5 4 0 0 0 43: the last ones less those two before
    assert packed == {"size": [9, 11], "counts": "m054000[1"}
    np.testing.assert_array_equal(datasets.rle_decode(packed), mask)
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (40, 300), (0, 5)):
        mask = (rng.random(shape) < 0.4).astype(np.uint8)
        np.testing.assert_array_equal(datasets.rle_decode(datasets.rle_encode(mask)), mask)
    for damaged in ({"size": [2, 2], "counts": "2"}, {"size": [2, 2], "counts": "\x7f"}, {},
                    {"size": [2, 2], "counts": [5, -1]}, {"size": [1 << 20] * 2, "counts": [1]},
                    {"size": [2, 2], "counts": "ooooooooooooooooooo"}):  # fmt: skip
        with pytest.raises(ValueError, match="rle_decode"):
            datasets.rle_decode(damaged)


def test_polygons_against_every_pixel():
    star = [10, 0, 13, 9, 20, 9, 14, 13, 17, 20, 10, 15, 3, 20, 6, 13, 0, 9, 7, 9]
    mask = datasets.polygons_to_mask([star, [0.2, 0.2, 3.1, 0.2, 3.1, 2.2]], 22, 21)

    def inside(x, y, p):
        odd = False
        for i in range(0, len(p), 2):
            x0, y0, x1, y1 = p[i], p[i + 1], p[(i + 2) % len(p)], p[(i + 3) % len(p)]
            if (y0 <= y) != (y1 <= y) and x > x0 + (y - y0) * (x1 - x0) / (y1 - y0):
                odd = not odd
        return odd

    for y in range(22):
        for x in range(21):
            want = inside(x + 0.5, y + 0.5, star)
            want |= inside(x + 0.5, y + 0.5, [0.2, 0.2, 3.1, 0.2, 3.1, 2.2])
            assert mask[y, x] == want
    with pytest.raises(ValueError, match="three pairs"):
        datasets.polygons_to_mask([[0, 0, 1, 1]], 4, 4)


def test_coco_entries_that_lack_something_name_the_file_and_the_image(tmp_path):
    path = tmp_path / "instances.json"

    def read(image, annotation, **options):
        image, annotation = {"id": 5, **image}, {"image_id": 5, "category_id": 3, **annotation}
        entries = {"images": [image], "categories": [], "annotations": [annotation]}
        path.write_text(json.dumps(entries))
        return datasets.CocoDetection(options.pop("folder", None), path, **options)[0]

    for image, annotation, options in (
        ({}, {"bbox": [1, 2, 3, 4]}, {"masks": True}),  # no height and width
        ({}, {"bbox": [1, 2, 3, 4], "area": None}, {}),
        ({}, {"bbox": [1, 2, 3, 4], "iscrowd": "no"}, {}),
        ({}, {"bbox": [1, 2, 3, 4]}, {"folder": tmp_path}),  # no file_name
    ):
        with pytest.raises(ValueError, match=r"instances\.json.*image 5"):
            read(image, annotation, **options)


def test_coco(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((8, 10, 3), np.uint8)).save(tmp_path / "a.png")
    run = datasets.rle_encode(np.eye(8, 10))
    entries = {
        "images": [{"id": 5, "file_name": "a.png", "height": 8, "width": 10}],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": [
            {"image_id": 5, "category_id": 3, "bbox": [1, 2, 3, 4],
             "segmentation": [[1, 2, 4, 2, 4, 6, 1, 6]], "area": 12.0, "iscrowd": 0},
            {"image_id": 5, "category_id": 3, "bbox": [0, 0, 8, 8], "segmentation": run,
             "iscrowd": 1},
        ],
    }  # fmt: skip
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(entries))
    data = datasets.CocoDetection(tmp_path, path, masks=True)
    picture, target = data[0]
    assert picture.shape == (3, 8, 10)
    assert target["boxes"].tolist() == [[1, 2, 4, 6], [0, 0, 8, 8]]
    assert target["area"].tolist() == [12, 64]
    assert target["masks"][0].sum() == 12
    np.testing.assert_array_equal(target["masks"][1], np.eye(8, 10))
    assert data.categories == {3: "cat"}
    entries["images"][0]["file_name"] = "../a.png"
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="outside"):
        datasets.CocoDetection(tmp_path, path)[0]
    for damaged, message in [
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"images": []}', "has no annotations, categories"),
        (json.dumps(entries | {"annotations": [{"image_id": 9}]}), "not there"),
    ]:
        path.write_text(damaged)
        with pytest.raises(ValueError, match=message):
            datasets.CocoDetection(None, path)
