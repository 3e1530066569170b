"""Public names without a row, and why they have none."""

from numus.functions import lazy
from ops import composed, linalg

REASONS = {
    "numbers and types": """
        DType Device Tensor device e euler_gamma inf nan pi newaxis bool int8 int16 int32 int64
        uint8 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float16 bfloat16 float32 float64
        complex64 complex128 __version__ __array_api_version__ autograd random linalg fft tree nn
        numpy optim data distance distributed distributions graphs integrate metrics models Mesh
        optimize polynomial quant signal sparse special stats text vision autocast
        matmul_precision kernels
    """,
    "inspection: answers about the library, not tensors (tests/functions/test_operators.py)": """
        __array_namespace_info__ default_device devices set_default_device can_cast finfo iinfo
        isdtype promote_types result_type compile_log explain memory_stats get_num_threads
        set_num_threads tune Explanation
    """,
    "an error (tests/linalg/test_spectra.py)": "linalg.LinAlgError",
    "integers to integers (tests/fft/test_fft.py)": "fft.next_fast_len fft.prev_fast_len",
    "a number of numbers (tests/fft/test_cosine.py)": "fft.fhtoffset",
    "designs, tables and searches on the host (tests/signal)": """
        signal.windows signal.get_window signal.butter signal.cheby1 signal.cheby2 signal.ellip
        signal.iirfilter signal.firwin signal.kaiser_atten signal.kaiser_beta signal.lfilter_zi
        signal.sosfilt_zi signal.savgol_coeffs signal.find_peaks signal.choose_conv_method
        signal.correlation_lags signal.hz_to_mel signal.mel_to_hz signal.mel_filter_bank
    """,
    "made of functions that have rows (tests/signal)": "signal.mel_spectrogram signal.coherence",
    "when things run (tests/functions/test_operators.py)": "eval synchronize",
    "transformations (tests/transforms)": """
        associative_scan checkpoint cond custom_jvp custom_vjp debug_nans fori_loop grad hessian
        hvp jacfwd jacrev jit jvp linearize scan while_loop
        value_and_grad vjp vmap enable_grad inference_mode is_grad_enabled no_grad set_grad_enabled
        BackwardHook RemovableHandle register_backward_hook
    """,
    "there may be no GPU (tests/functions/test_operators.py)": "to_gpu Tensor.is_gpu Tensor.to_gpu",
    "the state of the generator (tests/random)": "random.seed random.get_state random.set_state",
    "generators that count draws (tests/random/test_generator.py)": """
        random.Generator random.default_rng
    """,
    "what a tensor is (tests/functions/test_host_access.py, test_manipulation.py)": """
        Tensor.assign Tensor.data Tensor.data_write Tensor.device Tensor.dtype
        Tensor.is_contiguous Tensor.item Tensor.itemsize Tensor.nbytes Tensor.ndim
        Tensor.numpy Tensor.offset Tensor.rebind Tensor.rebind_alone
        Tensor.shape Tensor.size Tensor.strides Tensor.tolist Tensor.cpu Tensor.to_device
    """,
    "in-place forms of functions that have rows (tests/functions/test_view_writes.py)": """
        Tensor.abs_ Tensor.acos_ Tensor.acosh_ Tensor.add_ Tensor.addcdiv_ Tensor.addcmul_
        Tensor.asin_ Tensor.asinh_ Tensor.atan2_ Tensor.atan_ Tensor.atanh_ Tensor.bernoulli_
        Tensor.ceil_ Tensor.clamp_ Tensor.clip_ Tensor.conj_ Tensor.copy_ Tensor.copysign_
        Tensor.cos_ Tensor.cosh_ Tensor.digamma_ Tensor.div_ Tensor.erf_ Tensor.erfinv_ Tensor.exp2_
        Tensor.exp_ Tensor.expm1_ Tensor.exponential_ Tensor.fill_ Tensor.floor_
        Tensor.floor_divide_ Tensor.fmod_ Tensor.hypot_ Tensor.index_add_ Tensor.index_put_
        Tensor.lerp_ Tensor.lgamma_ Tensor.log10_ Tensor.log1p_ Tensor.log2_ Tensor.log_
        Tensor.masked_fill_ Tensor.masked_scatter_ Tensor.mul_ Tensor.nan_to_num_ Tensor.neg_
        Tensor.normal_ Tensor.pow_ Tensor.reciprocal_ Tensor.relu_ Tensor.remainder_ Tensor.round_
        Tensor.rsqrt_ Tensor.scatter_ Tensor.scatter_add_ Tensor.scatter_reduce_ Tensor.sigmoid_
        Tensor.sign_ Tensor.sin_ Tensor.sinh_ Tensor.sqrt_ Tensor.square_ Tensor.sub_ Tensor.tan_
        Tensor.tanh_ Tensor.tril_ Tensor.triu_ Tensor.trunc_ Tensor.uniform_ Tensor.zero_
    """,
    "gradients of a tensor (tests/transforms)": """
        Tensor.backward Tensor.detach Tensor.grad Tensor.is_leaf Tensor.register_hook
        Tensor.register_post_accumulate_grad_hook Tensor.requires_grad Tensor.requires_grad_
        Tensor.retain_grad
    """,
    "operators are the functions (tests/functions/test_operators.py)": """
        Tensor.__add__ Tensor.__radd__ Tensor.__iadd__ Tensor.__sub__ Tensor.__rsub__
        Tensor.__isub__ Tensor.__mul__ Tensor.__rmul__ Tensor.__imul__ Tensor.__truediv__
        Tensor.__rtruediv__ Tensor.__itruediv__ Tensor.__floordiv__ Tensor.__rfloordiv__
        Tensor.__ifloordiv__ Tensor.__mod__ Tensor.__rmod__ Tensor.__imod__ Tensor.__pow__
        Tensor.__rpow__ Tensor.__ipow__ Tensor.__matmul__ Tensor.__rmatmul__ Tensor.__imatmul__
        Tensor.__and__ Tensor.__rand__ Tensor.__iand__ Tensor.__or__ Tensor.__ror__ Tensor.__ior__
        Tensor.__xor__ Tensor.__rxor__ Tensor.__ixor__ Tensor.__lshift__ Tensor.__rlshift__
        Tensor.__ilshift__ Tensor.__rshift__ Tensor.__rrshift__ Tensor.__irshift__
        Tensor.__divmod__ Tensor.__rdivmod__ Tensor.__round__ Tensor.__eq__ Tensor.__ne__
        Tensor.__lt__ Tensor.__le__ Tensor.__gt__ Tensor.__ge__
    """,
    "Python's protocols (tests/functions/test_operators.py, test_interchange.py)": """
        Tensor.__bool__ Tensor.__int__ Tensor.__float__ Tensor.__complex__ Tensor.__index__
        Tensor.__len__ Tensor.__iter__ Tensor.__contains__ Tensor.__hash__ Tensor.__repr__
        Tensor.__str__ Tensor.__format__ Tensor.__array__ Tensor.__array_function__
        Tensor.__array_namespace__ Tensor.__array_ufunc__
        Tensor.__array_priority__ Tensor.__buffer__ Tensor.__dlpack__ Tensor.__dlpack_device__
        Tensor.__copy__ Tensor.__deepcopy__ Tensor.__reduce__
    """,
}

EXEMPT = {name: reason for reason, names in REASONS.items() for name in names.split()}

# Functions and methods of modules that are loaded late are compositions of others: their values are
# compared with NumPy's, the derivatives of some in `ops/composed.py`.
_LATE = "composed of others (tests/functions/test_numpy_names.py, test_torch_names.py)"
_WITH_ROWS = {row.name for row in (*composed.ROWS, *linalg.ROWS)}
_NAMES = [name for names in lazy.FUNCTIONS.values() for name in names.split()]
_NAMES += [f"Tensor.{name}" for names in lazy.METHODS.values() for name in names.split()]
EXEMPT |= {n: _LATE for n in _NAMES if n not in _WITH_ROWS and "._" not in n}
EXEMPT |= {name: f"another name of {room}.{its}" for name, (room, its) in lazy.ALIASES.items()}
