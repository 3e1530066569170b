"""Data: datasets, samplers, loaders and record files."""

# ruff: noqa: F403
from numus.data.collate import *
from numus.data.datasets import *
from numus.data.loader import *
from numus.data.records import *
from numus.data.samplers import *
from numus.data.workers import *
