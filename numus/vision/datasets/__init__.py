"""Datasets by the file formats they come in: image folders, IDX, CIFAR, COCO annotations."""

from numus.vision.datasets.cifar import CIFAR10, CIFAR100
from numus.vision.datasets.coco import CocoDetection, polygons_to_mask, rle_decode, rle_encode
from numus.vision.datasets.folders import ImageFolder
from numus.vision.datasets.idx import MNIST, read_idx

__all__ = [
    "CIFAR10", "CIFAR100", "MNIST", "CocoDetection", "ImageFolder", "polygons_to_mask", "read_idx",
    "rle_decode", "rle_encode",
]  # fmt: skip
