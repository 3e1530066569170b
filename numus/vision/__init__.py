"""Vision: batched transformations of images, boxes and masks, datasets (docs/vision.md)."""

# ruff: noqa: F403
from numus.vision import datasets as datasets
from numus.vision.augment import *
from numus.vision.boxes import *
from numus.vision.colour import *
from numus.vision.filters import *
from numus.vision.grids import *
from numus.vision.images import *
from numus.vision.mixing import *
from numus.vision.random_transforms import *
from numus.vision.roi_align import *
from numus.vision.size_transforms import *
from numus.vision.sizes import *
from numus.vision.suppression import *
from numus.vision.transform import *
from numus.vision.warping import *
