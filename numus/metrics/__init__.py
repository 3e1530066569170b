"""Metrics that accumulate across batches and processes (docs/metrics.md)."""

# ruff: noqa: F403
from numus.metrics.classification import *
from numus.metrics.detection import *
from numus.metrics.metric import *
from numus.metrics.ranking import *
