"""Pictures in folders: one folder for each class. Pillow, which is optional, decodes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from numus.data import Dataset

__all__ = ["ImageFolder"]

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
Array = np.ndarray[Any, Any]


class ImageFolder(Dataset):
    """`folder/class/…/picture.png`: classes are the names of folders, in alphabetical order.

    An example is a uint8 picture (3, height, width), or what `transform` makes of it, and the
    number of its class.

    Args:
        transform: a function of a picture, called for each one.
        mode: Pillow's name of the channels: "RGB", or "L" for grey.
    """

    def __init__(
        self,
        folder: str | Path,
        transform: Callable[[Array], Any] | None = None,
        *,
        mode: str = "RGB",
    ) -> None:
        self.folder, self.transform, self.mode = Path(folder), transform, mode
        if not self.folder.is_dir():
            raise FileNotFoundError(f"ImageFolder: {folder} is not a folder")
        self.classes = sorted(p.name for p in self.folder.iterdir() if p.is_dir())
        self.samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((self.folder / name).rglob("*"))
            if path.suffix.lower() in ENDINGS and path.is_file()
        ]
        if not self.samples:
            raise ValueError(
                f"ImageFolder: {folder} has no pictures ({', '.join(ENDINGS)}) in a folder for "
                "each class"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, number = self.samples[index]
        picture = read_picture(path, self.mode)
        return (picture if self.transform is None else self.transform(picture)), number


def read_picture(path: str | Path, mode: str = "RGB") -> Array:
    """A file as uint8 of shape (channels, height, width)."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ImportError("ImageFolder reads pictures with Pillow: pip install pillow") from None
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert(mode))
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError) as error:
        raise ValueError(f"{path} is not a picture that can be read: {error}") from None
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path}: {error}") from None
    return np.ascontiguousarray(np.moveaxis(pixels.reshape(*pixels.shape[:2], -1), -1, 0))
