"""The errors numus raises. Each names the operation, what it was given, and the way out."""

from __future__ import annotations

import numpy as np


class NumusError(Exception):
    """Base of every error that is numus's own."""


class ShapeError(NumusError, ValueError):
    """Shapes that do not fit the operation."""


class AxisError(ShapeError, np.exceptions.AxisError):
    """An axis that the array has not got."""


class DTypeError(NumusError, TypeError):
    """A dtype that the operation does not take, or two that do not promote to a common one."""


class DeviceError(NumusError, ValueError):
    """Operands on different devices, or a device that is not there."""


class IndexRangeError(NumusError, IndexError):
    """An index outside the axis it points into."""


class TracingError(NumusError, RuntimeError):
    """A value was asked for inside a transformation that has only its shape and dtype."""


class GradientError(NumusError, RuntimeError):
    """A gradient that is not defined as asked."""


class NonFiniteError(NumusError, FloatingPointError):
    """A value that is not a number, or infinite, where somebody looked for it."""


class LinAlgError(NumusError, np.linalg.LinAlgError):
    """A matrix that a function of linear algebra cannot take: singular, indefinite."""


class OutOfMemoryError(NumusError, MemoryError):
    """A device could not provide memory, even after its pool was emptied."""


class RecordError(NumusError, ValueError):
    """A file of records or tensors that is not whole, or not one at all."""


class DistributedError(NumusError, RuntimeError):
    """Processes of a group that do not fit together, or one of them that has gone."""


class CompileError(NumusError, RuntimeError):
    """A kernel could not be compiled: a defect in numus; the message carries the kernel."""
