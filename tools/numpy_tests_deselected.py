"""Tests of NumPy that `tools.numpy_tests` leaves out: patterns of names and source, and why."""

_OBJECTS = "dtype object"
_TEXT = "strings and bytes as elements"
_TIME = "dates and times as elements"
_WIDE = "extended precision (longdouble)"
_RECORDS = "structured dtypes and fields"
_MEMORY = (
    "NumPy's memory: alignment, byte order, flags, buffers, reference counts, column-major order"
)
_SUBCLASS = "subclasses of ndarray, matrix, masked arrays"
_STATUS = "floating-point status flags and their warnings"
_INTERNAL = "NumPy's internals: C interfaces, dtype metadata, its own deprecations"
_PRIVATE = "NumPy's private modules, and signatures of its C types"
_LENGTHS = "lengths of NumPy's vectorised sorts: 12 of 511 are run for each dtype"
_KEPT = "0|1|2|7|8|15|16|63|64|127|255|510"
_SEEDS = "the numbers of NumPy's random seeds"
_DEVICE = 'devices: NumPy has one, "cpu"'
_LIMIT = "limits of NumPy's C code: 64 axes and operands"

# of a test's name with its parameters
IDENTIFIERS = {
    r"metadata|TestCApiAccess|lapack_lite|blas64|test_s_(axes|contains)_none": _INTERNAL,
    r"test_signatures|method_signatures|test_exhaustiveness|test__replace_nan": _PRIVATE,
    rf"test_(sort|partition|argsort)_(int|float|fp)\[.*N(?!({_KEPT})\b)\d": _LENGTHS,
    r"TestDot::test_dot(matmat|matvec2?|vecmat[23]?|vecvec(outer|inner)|vecscalar2?)$": _SEEDS,
    r"TestDevice::test_(device|to_device)\b": _DEVICE,
    r"test_c_func_dispatcher_text_signature": _PRIVATE,
    r"TestResize::test_check_(reference|weakref)|test_cannot_assign_data": _MEMORY,
    r"TestFlat::test_maxdims|test_dimension_and_args_limit": _LIMIT,
    r"test_rejects_bad_dtypes\[5i\]": _RECORDS,
    r"too_many_(advanced|fancy)_indices": _LIMIT,
    r"[-\[]>[iufc]\d": _MEMORY,
    r"subarray": _RECORDS,
    r"TestTrimZeros::test_(basic|leading_skip|trailing_skip|all_zero)": _OBJECTS,
    r"[Oo]bject|\[O[-\]]|-O\]": _OBJECTS,
    r"[Ss]tring|[Uu]nicode|[Ss]tr_|(?<!to)bytes|[Cc]har(?!ge)|\[[SU]\d*[-\]]": _TEXT,
    r"datetime|timedelta|[Bb]usday|nat\b|NaT|\[[mM]8": _TIME,
    r"longdouble|longcomplex|float128|complex256|clongdouble|\[[gG][-\]]|-[gG]\]": _WIDE,
    r"[Rr]ecord|[Ss]truct(ure|_)|[Ff]ields?_|[Vv]oid|TestRational": _RECORDS,
    r"align|[Bb]yteorder|[Bb]yteswap|[Ff]lags|[Bb]uffer(_|Protocol)|refc|[Ww]riteable": _MEMORY,
    r"memmap|fortran|contig": _MEMORY,
    r"TestLikeFuncs::test_(ones|zeros|empty|filled)_like": _MEMORY,
    r"TestKeepdims": _SUBCLASS,
    r"[Ss]ubclass|[Mm]atrix_|masked|subok|PEP3118|NewBufferProtocol": _SUBCLASS,
    r"TestFPE|errstate|seterr|fpe|FloatExceptions": _STATUS,
    r"array_interface|ctypes|Interface|TestCFunc|capi|TestSizeOf|TestHash|c_array": _INTERNAL,
}

# of the error of a test that meets such a dtype while it runs
MISSING_DTYPE = r"TypeError: numus\.numpy: .* (is not a dtype that numus has|are not there; it has)"

# of a test's source
SOURCES = {
    r"[=(\[, ]object[),\]]|object_|dtype=['\"]?O\b|'O'|\"O\"|dtype\('O'\)": _OBJECTS,
    r"np\.str_|np\.bytes_|dtype=str|['\"][<>|=]?[SU]\d*['\"]|array\(\[?['\"]|StringDType": _TEXT,
    r"datetime64|timedelta64|M8|m8": _TIME,
    r"longdouble|clongdouble|longcomplex|np\.float128": _WIDE,
    r"dtype=\[\(|np\.dtype\(\[|dtype\(\[\(|np\.void|recarray|rational|np\.dtype\(\{": _RECORDS,
    r"order=['\"][FAK]['\"]|asfortranarray|byteswap|newbyteorder|setflags|['\"]>[iufc]|"
    r"refcount|memoryview|\.ctypes|__array_interface__|as_strided|getbuffer": _MEMORY,
    r"np\.matrix|asmatrix|\bmatrix\(|\(np\.ndarray\)|\(ndarray\)|np\.ma\b|\bma\.|__array_wrap__|"
    r"__array_finalize__|__array_ufunc__|__array_prepare__|__array_function__|subok": _SUBCLASS,
    r"seterr|FloatingPointError": _STATUS,
    r"_umath_tests|_multiarray_tests|ncu_tests|deprecat|Deprecat|np\.core|nfb\.|UFUNC_": _INTERNAL,
}
