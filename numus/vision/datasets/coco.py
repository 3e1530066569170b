"""COCO annotations: pictures, boxes and masks described by a JSON file.

A mask is polygons, or runs of zeros and ones in column order (RLE), as a list of counts or packed
into text: six bits in a character from "0" on, five of a signed number with a bit that says more
follows, each count past the second relative to the one two before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numus.codegen.cpu.sequential import FLOAT64, INDEX64
from numus.data import Dataset
from numus.files import open_regular
from numus.runtime.cpu.sequential import sequential
from numus.vision.datasets.folders import read_picture

__all__ = ["CocoDetection", "polygons_to_mask", "rle_decode", "rle_encode"]

Array = np.ndarray[Any, Any]
MAX_PIXELS = 1 << 28  # of a mask that a file may ask for


def rle_encode(mask: Any) -> dict[str, Any]:
    """A mask (height, width) as runs: {"size": [height, width], "counts": text}.

    >>> nm.vision.datasets.rle_encode([[0, 1], [0, 1]])
    {'size': [2, 2], 'counts': '22'}
    """
    there = np.asarray(mask) != 0
    if there.ndim != 2:
        raise ValueError(f"rle_encode: takes a mask (height, width), not shape {there.shape}")
    flat = there.T.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    if flat.size and flat[0]:
        counts = [0, *counts]
    return {"size": list(there.shape), "counts": _packed(counts)}


def _packed(counts: Sequence[int]) -> str:
    text = []
    for i, count in enumerate(counts):
        x = count - counts[i - 2] if i > 2 else count
        more = True
        while more:
            bits = x & 31
            x >>= 5
            more = x != (-1 if bits & 16 else 0)
            text.append(chr(bits + (32 if more else 0) + 48))
    return "".join(text)


def _unpacked(text: str) -> list[int]:
    counts: list[int] = []
    at = 0
    while at < len(text):
        x = shift = 0
        while True:
            bits = ord(text[at]) - 48 if at < len(text) else -1
            if not 0 <= bits < 64 or shift > 60:
                raise ValueError(f"rle_decode: counts are damaged at character {at}")
            x |= (bits & 31) << shift
            at, shift = at + 1, shift + 5
            if not bits & 32:
                break
        if bits & 16:
            x -= 1 << shift
        counts.append(x + counts[-2] if len(counts) > 2 else x)
    return counts


def rle_decode(rle: dict[str, Any]) -> Array:
    """The mask (height, width), uint8, of runs; counts are text, or a list of numbers.

    >>> nm.vision.datasets.rle_decode({"size": [2, 2], "counts": [2, 2]}).tolist()
    [[0, 1], [0, 1]]
    """
    try:
        height, width = (int(n) for n in rle["size"])
        counts = rle["counts"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"rle_decode: takes {{'size': …, 'counts': …}}, not {rle!r:.80}") from None
    if isinstance(counts, bytes):
        counts = counts.decode("ascii", "replace")
    runs = _unpacked(counts) if isinstance(counts, str) else [int(n) for n in counts]
    if min(height, width) < 0 or height * width > MAX_PIXELS:
        raise ValueError(f"rle_decode: a mask of {height} × {width} pixels is not read")
    if min(runs, default=0) < 0 or sum(runs) != height * width:
        raise ValueError(f"rle_decode: runs of {sum(runs)} pixels for a mask of {height} × {width}")
    values = np.arange(len(runs)) % 2
    return np.repeat(values.astype(np.uint8), runs).reshape(width, height).T.copy()


@sequential
def fill_polygon(n: int, points: FLOAT64, height: int, width: int, mask: INDEX64) -> None:
    """Turn the pixels over whose centres lie inside: even-odd, by the crossings of each row."""
    for row in range(height):
        y = row + 0.5
        for i in range(n):
            j = i + 1 if i + 1 < n else 0
            x0 = points[2 * i]
            y0 = points[2 * i + 1]
            x1 = points[2 * j]
            y1 = points[2 * j + 1]
            above = y0 <= y
            below = y1 <= y
            if above != below:
                x = x0 + (y - y0) * (x1 - x0) / (y1 - y0)
                x = min(max(x, 0.0), width + 1.0)
                first = int(x + 0.5)  # the first centre to the right of the crossing
                for column in range(first, width):
                    mask[row * width + column] = 1 - mask[row * width + column]


def polygons_to_mask(polygons: Any, height: int, width: int) -> Array:
    """Polygons, each [x0, y0, x1, y1, …], as a mask (height, width) of uint8: the pixels whose
    centres lie in at least one.

    >>> nm.vision.datasets.polygons_to_mask([[0, 0, 2, 0, 2, 1, 0, 1]], 2, 3).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """
    if height < 0 or width < 0 or height * width > MAX_PIXELS:
        raise ValueError(f"polygons_to_mask: a mask of {height} × {width} pixels is not made")
    total = np.zeros(height * width, bool)
    for polygon in polygons:
        points = np.ascontiguousarray(polygon, np.float64).ravel()
        if len(points) < 6 or len(points) % 2 or not np.isfinite(points).all():
            raise ValueError(
                f"polygons_to_mask: a polygon is at least three pairs x, y, not {polygon!r:.60}"
            )
        mask = np.zeros(height * width, np.int64)
        fill_polygon(len(points) // 2, points, height, width, mask)
        total |= mask != 0
    return total.reshape(height, width).astype(np.uint8)


class CocoDetection(Dataset):
    """Pictures with their annotations, from a folder and COCO's JSON file (instances_….json).

    An example is a uint8 picture (3, height, width) and a dict: `image_id`, `boxes` (n, 4) as
    x1, y1, x2, y2, `labels` (n,) as category ids, `area`, `iscrowd`, and `masks` (n, height, width)
    if asked for.

    Args:
        folder: of the pictures; None gives examples without pictures.
        masks: whether polygons and runs become masks.
    """

    def __init__(
        self, folder: str | Path | None, annotations: str | Path, *, masks: bool = False
    ) -> None:
        self.folder, self.masks = None if folder is None else Path(folder), masks
        self.path = Path(annotations)
        with open_regular(annotations) as file:
            contents = file.read()
        try:
            found = json.loads(contents)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{annotations} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"{annotations}: COCO's annotations are an object, not {found!r:.40}")
        missing = [k for k in ("images", "annotations", "categories") if k not in found]
        if missing:
            raise ValueError(f"{annotations} has no {', '.join(missing)}")
        try:
            self.categories = {int(c["id"]): str(c["name"]) for c in found["categories"]}
            self.images = {int(i["id"]): i for i in found["images"]}
            self.annotations: dict[int, list[dict[str, Any]]] = {i: [] for i in self.images}
            for entry in found["annotations"]:
                self.annotations[int(entry["image_id"])].append(entry)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{annotations}: an entry lacks what COCO asks of it, or names an image "
                f"that is not there: {error!r}"
            ) from None
        self.ids = sorted(self.images)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Array | None, dict[str, Any]]:
        number = self.ids[index]
        about = self.images[number]
        picture = None
        if self.folder is not None:
            name = about.get("file_name")
            if not isinstance(name, str):
                raise ValueError(f"{self.path}: image {number} names no file: {name!r}")
            path = (self.folder / name).resolve()
            if not path.is_relative_to(self.folder.resolve()):
                raise ValueError(f"{self.path}: image {number} names a file outside {self.folder}")
            picture = read_picture(path)
        return picture, self.target(number)

    def target(self, number: int) -> dict[str, Any]:
        """The annotations of the picture with an id."""
        entries, about = self.annotations[number], self.images[number]
        try:
            boxes = np.asarray([e["bbox"] for e in entries], np.float32).reshape(-1, 4)
            labels = np.asarray([e["category_id"] for e in entries], np.int64)
            sides = boxes[:, 2:].prod(axis=1).tolist()
            areas = [float(e.get("area", a)) for e, a in zip(entries, sides, strict=True)]
            crowds = np.asarray([int(e.get("iscrowd", 0)) for e in entries], np.int64)
            size = (int(about["height"]), int(about["width"])) if self.masks else (0, 0)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: annotations of image {number}: {error!r}") from None
        boxes[:, 2:] += boxes[:, :2]
        found: dict[str, Any] = {
            "image_id": number,
            "boxes": boxes,
            "labels": labels,
            "area": np.asarray(areas, np.float32),
            "iscrowd": crowds,
        }
        if self.masks:
            masks = [self._mask(e.get("segmentation"), *size) for e in entries]
            found["masks"] = np.stack(masks) if masks else np.zeros((0, *size), np.uint8)
        return found

    def _mask(self, shape: Any, height: int, width: int) -> Array:
        try:
            if isinstance(shape, dict):
                mask = rle_decode(shape)
                if mask.shape != (height, width):
                    raise ValueError(f"a mask of {mask.shape} for a picture of {(height, width)}")
                return mask
            return polygons_to_mask(shape or (), height, width)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: {error}") from None
