"""Other names of dtypes: C's in NumPy, and PyTorch's."""

from numus import dtypes as dt

__all__ = [
    "bool_", "byte", "cdouble", "cfloat", "csingle", "double", "float", "half", "int", "int_",
    "intc", "intp", "long", "longlong", "short", "single", "ubyte", "uint", "uintc", "uintp",
    "ulong", "ulonglong", "ushort",
]  # fmt: skip

bool_ = dt.bool_
byte, short, intc, int_, intp, long, longlong = (
    *(dt.int8, dt.int16, dt.int32, dt.int64, dt.int64, dt.int64, dt.int64),
)
ubyte, ushort, uintc, uint, uintp, ulong, ulonglong = (
    *(dt.uint8, dt.uint16, dt.uint32, dt.uint64, dt.uint64, dt.uint64, dt.uint64),
)
half, single, double = dt.float16, dt.float32, dt.float64
csingle, cdouble = dt.complex64, dt.complex128
# PyTorch's; NumPy has removed these names, whose meaning was Python's types
float, int, cfloat = dt.float32, dt.int32, dt.complex64
