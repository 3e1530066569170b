"""Convolutions, poolings and resizing: numus's own functions, under their PyTorch names."""

import numus as nm

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "fold",
    "grid_sample",
    "interpolate",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "pixel_shuffle",
    "pixel_unshuffle",
    "unfold",
]

adaptive_avg_pool1d = nm.adaptive_avg_pool1d
adaptive_avg_pool2d = nm.adaptive_avg_pool2d
adaptive_avg_pool3d = nm.adaptive_avg_pool3d
adaptive_max_pool1d = nm.adaptive_max_pool1d
adaptive_max_pool2d = nm.adaptive_max_pool2d
adaptive_max_pool3d = nm.adaptive_max_pool3d
avg_pool1d = nm.avg_pool1d
avg_pool2d = nm.avg_pool2d
avg_pool3d = nm.avg_pool3d
conv1d = nm.conv1d
conv2d = nm.conv2d
conv3d = nm.conv3d
conv_transpose1d = nm.conv_transpose1d
conv_transpose2d = nm.conv_transpose2d
conv_transpose3d = nm.conv_transpose3d
fold = nm.fold
grid_sample = nm.grid_sample
interpolate = nm.interpolate
lp_pool1d = nm.lp_pool1d
lp_pool2d = nm.lp_pool2d
lp_pool3d = nm.lp_pool3d
max_pool1d = nm.max_pool1d
max_pool2d = nm.max_pool2d
max_pool3d = nm.max_pool3d
max_unpool1d = nm.max_unpool1d
max_unpool2d = nm.max_unpool2d
max_unpool3d = nm.max_unpool3d
pixel_shuffle = nm.pixel_shuffle
pixel_unshuffle = nm.pixel_unshuffle
unfold = nm.unfold
