"""Names of NumPy and PyTorch that numus has elsewhere, otherwise, or not, and why."""

# ruff: noqa: E501
from __future__ import annotations

import re

_FUNCTIONAL = """
    alpha_dropout bilinear binary_cross_entropy_with_logits celu channel_shuffle
    cosine_embedding_loss cosine_similarity ctc_loss dropout embedding embedding_bag
    feature_alpha_dropout hardshrink hinge_embedding_loss kl_div margin_ranking_loss
    pairwise_distance poisson_nll_loss prelu rrelu selu threshold triplet_margin_loss
"""
# Dotted paths under numus, which a test resolves.
ELSEWHERE = {
    **{name: f"nn.functional.{name}" for name in _FUNCTIONAL.split()},
    **{"affine_grid_generator": "nn.functional.affine_grid", "pdist": "nn.functional.pdist"},
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), "grid_sample"),
    **{"binomial": "random", "poisson": "random", "get_rng_state": "random.get_state"},
    **{"set_rng_state": "random.set_state", "seed": "random.seed", "compile": "jit"},
    **{"native_layer_norm": "layer_norm", "native_group_norm": "group_norm"},
    **{"native_batch_norm": "batch_norm", "native_dropout": "nn.functional.dropout"},
    **{"constant_pad_nd": "pad", "feature_dropout": "nn.functional.dropout1d"},
    **{"native_channel_shuffle": "nn.functional.channel_shuffle", "adjoint": "Tensor.adjoint"},
    **{"frobenius_norm": "linalg.norm", "nuclear_norm": "linalg.norm", "native_norm": "norm"},
    **{"lu": "linalg.lu", "solve": "linalg.solve", "triangular_solve": "linalg.solve_triangular"},
    **{"cholesky_solve": "linalg.cho_solve", "symeig": "linalg.eigh", "geqrf": "linalg.qr"},
    **{"cholesky_inverse": "linalg.cho_solve", "lu_unpack": "linalg.lu", "stack_copy": "stack"},
    **{"get_default_device": "default_device", "convolution": "conv_general"},
    **{"is_inference_mode_enabled": "is_grad_enabled", "set_anomaly_enabled": "debug_nans"},
    **{"is_same_size": "Tensor.is_same_size", "narrow_copy": "Tensor.narrow_copy"},
    **{"get_device": "Tensor.get_device", "zero_": "Tensor.zero_", "dtype": "DType"},
    **{"get_float32_matmul_precision": "matmul_precision", "ndarray": "Tensor"},
    **{"set_float32_matmul_precision": "matmul_precision", "require": "asarray"},
    **{"gru": "nn.GRU", "gru_cell": "nn.GRUCell", "lstm": "nn.LSTM", "lstm_cell": "nn.LSTMCell"},
    **{"rnn_tanh": "nn.RNN", "rnn_relu": "nn.RNN", "rnn_tanh_cell": "nn.RNNCell"},
    **{"rnn_relu_cell": "nn.RNNCell", "to_dlpack": "Tensor.__dlpack__", "name": "Tensor"},
    **{"unsafe_chunk": "chunk", "unsafe_split": "split", "issubdtype": "isdtype"},
    **{"unsafe_split_with_sizes": "split_with_sizes", "common_type": "result_type"},
    **{"min_scalar_type": "result_type", "mintypecode": "result_type", "memmap": "frombuffer"},
    **{"from_file": "fromfile", "segment_reduce": "segment_sum", "ModuleDict": "nn.ModuleDict"},
    **{"conv_tbc": "conv1d", "max_pool1d_with_indices": "max_pool1d", "True_": "asarray"},
    **{"False_": "asarray", "nonzero_static": "nonzero", "ParameterDict": "nn.ParameterDict"},
    **{"detach_": "Tensor.detach", "embedding_renorm_": "renorm", "Generator": "random.key"},
    **{"default_generator": "random.key", "thread_safe_generator": "random.key"},
    **{"norm_except_dim": "nn.utils", "broadcast": "broadcast_arrays", "new": "Tensor.new_empty"},
    **{"initial_seed": "random.get_state", "GradScaler": "optim"},
}

_RULES = """
jax.lax | .*_p|[A-Z].*|.*_shape_tuple|.*_permutations|.*_dimension_numbers|padtype_to_pads|.*token|after_all|stage|dce_sink|composite|shape_as_value|rng_.*|.*_grad(_a)? | JAX's primitives and internals
jax.lax | p(max|mean|min|permute|sum|sum_scatter|shuffle|swapaxes|broadcast|cast)|p(send|recv)|all_(gather|to_all)|ragged_all_to_all|axis_(index|size)|.*sharding.* | several devices at once
jax.lax | ragged_dot_general|conv_general_dilated_local|scaled_dot|dtype | operations of XLA that are not there yet
jax.numpy | ComplexWarning|ufunc|einsum_path|complex_|float_|character|flexible|object_ | numbers only, and no classes of scalars
jax.numpy | float[468]_.*|u?int[124] | dtypes that no kernel computes in
jax | NamedSharding|P|Shard|make_mesh|pmap|reshard|set_mesh|shard_map|smap | several devices at once
jax | ad|float0|ds|memory|remove_size.*|auto_pcast | JAX's primitives and internals
jax | transfer_guard.*|allow_.*|array_garbage.*|check.*|debug_.*|default_(device|prng_impl)|enable_.*|.*_guard|log_compiles|legacy_.*|no_.*|numpy_.*|softmax_custom_jvp|threefry_.*|jax2tf.*|explain_cache.*|ensure_.*|effects_barrier|print_env.*|live_arrays|make_user_context | settings of JAX's own tracer and runtime
jax | pure_callback | transformations that are not there yet
torch.nn | Container|NLLLoss2d|factory_kwargs|.*Options|UninitializedBuffer|RNN(Cell)?Base | bases and leftovers of PyTorch's own classes
torch.nn | DataParallel|SyncBatchNorm | several devices at once
torch.nn | CrossMapLRN2d|Fractional.*|LinearCrossEntropyLoss | layers that are not there yet
torch.nn.functional | [A-Z].*|assert_.*|boolean_dispatch|.*torch_function.*|.*_notes|.*scaled_.*mm|grouped_mm | PyTorch's internals
torch.nn.functional | fractional.*|linear_cross_entropy|multi_head_attention_forward|conv_tbc | layers that are not there yet
torch.optim | Muon|SparseAdam | optimisers that are not there yet
torch.optim | swap_in.* | PyTorch's internals
numpy | datetime.*|timedelta64|.*busday.*|isnat | dates and times: numbers only
numpy | matrix|asmatrix|bmat | NumPy advises against matrix objects: arrays have two axes
numpy | recarray|record|void|bytes_|str_|object_|character|flexible | elements are numbers
numpy | .*longdouble|float128|complex256 | no device computes in extended precision
numpy | generic|number|inexact|floating|complexfloating|integer|(un)?signedinteger | `nm.isdtype` knows kinds; there are no scalar classes
numpy | ScalarType|sctypeDict|typecodes|typename | dtypes are objects, without codes
numpy | (set|get)?(err.*|buf.*)|(set|get)bufsize | no floating-point error state: `nm.debug_nans` finds NaN
numpy | nditer|nested_iters|flatiter|ufunc | loops over elements are compiled: write with whole arrays
numpy | asfortranarray|isfortran | memory is row-major; views have any strides
numpy | base_repr|binary_repr|format_float_.*|fromregex | text of Python's numbers: NumPy's own serves
numpy | einsum_path | `nm.einsum` orders contractions itself
numpy | get_include|info|little_endian|show_.*|test | about NumPy's own build
numpy | poly1d | `nm.polynomial.Polynomial`
 | (i0|igammac?|polygamma|mvlgamma)_ | write x = x.{plain}(...)
 | i?stft | signal processing
torch | .*_copy | views are copied by `.copy()`
torch | is_inference | about PyTorch's dispatcher
torch | (.*[^_])_ | in-place forms are methods: `x.{plain}_()`
torch | [A-Z].* | classes of TorchScript, storages and the C++ runtime
torch | AVG|SUM|PRIVATE_OPS|TYPE_CHECKING|USE_.* | constants of PyTorch's own modules
torch | fbgemm.*|fused_moving.*|choose_qparams.*|quantized_.* | kernels of one library: nm's functions choose their schedules
 | q_.*|q(u)?int.*|quantize.*|qscheme|per_(channel|tensor).*|.*fake_quant.*|fbgemm.*|int_repr|dequantize|choose_qparams.*|empty_quantized|is_quantized | quantised tensors
 | .*sparse.*|.*_indices.*|indices(_copy)?|values(_copy)?|(h|d)s(p)?mm|h?spmm|s?smm|sspaddmm|saddmm|coalesce|is_coalesced|dense_dim|to_dense|jagged | sparse tensors
torch | (cudnn|miopen|mkldnn|batch_norm)_.* | kernels of one library: nm's functions choose their schedules
torch | .*autocast.* | `nm.autocast` is the one way to it
 | (u?int[1-7]|bits.*|bit|float4.*|float8_(e4m3fnuz|e5m2fnuz|e8m0fnu)|complex32|chalf) | dtypes that no kernel computes in
torch | (set|get|is|are|use)_.*determin.*|.*_warn.*|set_flush_denormal|.*interop_threads|init_num_threads | results are the same bits everywhere; there is nothing to set
torch | sym_.*|parse_.*|import_ir.*|merge_type.*|unify_type.*|fork|wait|classproperty|typename|compiled_with.* | TorchScript and symbolic shapes
torch | has_.*|.*vulkan.*|prepare_multi.*|profiler_.*|get_file_path|get_device_module|.*anomaly.* | about PyTorch's own build and tools
torch | set_default_(dtype|tensor_type) | functions take dtype=; the default is float32
 | (contiguous|preserve|legacy_contiguous|channels_last).*|layout|memory_format|strided | memory is row-major; layouts are the compiler's choice
 | as_strided.*|empty_(strided|permuted)|new_empty_strided|dim_order | views are made by slices and `nm.sliding_window_view`
 | is_(storage|distributed|neg|conj|mps|ipu|maia|meta|mkldnn|mtia|nested|vulkan|xla|xpu|pinned|shared|set_to|inference)|ipu|mtia|xpu|cuda|resolve_(conj|neg) | states and devices of PyTorch alone
 | eig|lobpcg|svd_lowrank|pca_lowrank|orgqr|ormqr | linear algebra that is not there yet
 | hash_tensor|slice_inverse | PyTorch's internals
torch.Tensor | (squeeze|unsqueeze|swapaxes|swapdims|transpose|t|resize|resize_as|set)_?|resize_as_sparse_ | a tensor keeps its shape: write x = x.{plain}(...)
torch.Tensor | storage.*|untyped_storage|(const_)?data_ptr|share_memory_|pin_memory|record_stream|to_mkldnn|to_padded_tensor|module_load|volatile|reinforce|output_nr|grad_dtype|as_subclass | memory and internals of PyTorch's storages
torch.Tensor | grad_fn | the graph is not an object: `nm.explain` shows it
torch.Tensor | apply_|map2?_ | Python functions of single elements: use whole arrays, or `nm.vectorize`
"""


def _rule(line: str) -> tuple[str, re.Pattern[str], str]:
    owner, rest = line.split(" | ", 1) if not line.startswith("|") else ("", line[2:])
    pattern, reason = rest.rsplit(" | ", 1)
    return owner.strip(), re.compile(pattern.strip()), reason.strip()


# A peer (or none, for all), a pattern of whole names, the reason.
REASONS = [_rule(line.strip()) for line in _RULES.strip().splitlines()]

# Reasons that a name is none of a library's interface: its own internals and build.
INTERNALS = {
    "JAX's primitives and internals", "settings of JAX's own tracer and runtime",
    "bases and leftovers of PyTorch's own classes", "PyTorch's internals",
    "views are copied by `.copy()`", "about PyTorch's dispatcher",
    "classes of TorchScript, storages and the C++ runtime",
    "constants of PyTorch's own modules",
    "kernels of one library: nm's functions choose their schedules",
    "`nm.autocast` is the one way to it", "dtypes that no kernel computes in",
    "results are the same bits everywhere; there is nothing to set",
    "TorchScript and symbolic shapes", "about PyTorch's own build and tools",
    "states and devices of PyTorch alone", "memory and internals of PyTorch's storages",
}  # fmt: skip

DIFFERENCES = {
    ("torch", "cummax"): "values only, without indices",
    ("torch", "cummin"): "values only, without indices",
    ("torch.Tensor", "cummax"): "values only, without indices",
    ("torch.Tensor", "cummin"): "values only, without indices",
    ("torch", "cond"): "JAX's: cond(pred, true_fun, false_fun, *operands)",
    ("torch", "while_loop"): "JAX's: while_loop(cond_fun, body_fun, init)",
    ("torch", "compile"): "`nm.jit`; `backend`, `mode` and `dynamic` say nothing",
    (
        "torch",
        "save",
    ): "writes a safetensors file, never a pickle: tensors, numbers, text, containers",
    ("torch", "load"): "reads those, and the tensors of PyTorch's own files; runs no code",
    ("torch", "set_default_dtype"): "float32 alone",
    ("torch", "get_rng_state"): "a tuple of integers",
    ("torch", "set_rng_state"): "a tuple of integers",
    ("torch", "manual_seed"): "the numbers that follow are numus's, not PyTorch's",
    ("torch", "Generator"): "the numbers are numus's, not PyTorch's",
    ("torch", "default_generator"): "the numbers are numus's, not PyTorch's",
    ("torch", "resize"): "NumPy's: a new array, filled by repeating",
    ("torch.Tensor", "resize"): "NumPy's: a new tensor, filled by repeating",
    ("torch.Tensor", "type"): "gives the name of the dtype",
    ("torch.Tensor", "is_shared"): "False: loaders' workers are threads",
    ("torch.Tensor", "new"): "a tensor of data, or an empty one",
    ("torch.nn", "Buffer"): "gives the tensor: `register_buffer` makes it a buffer",
    ("torch", "lu"): "`nm.linalg.lu`: P, L and U",
    ("torch.Tensor", "lu"): "`nm.linalg.lu`: P, L and U",
    ("torch", "lstsq"): "`nm.linalg.lstsq`",
    ("torch.Tensor", "lstsq"): "`nm.linalg.lstsq`",
    ("numpy", "load"): "gives a dict of tensors for a .npz file; never loads a pickle",
    ("numpy", "set_printoptions"): "the options are shared with NumPy",
    ("numpy", "partition"): "sorts",
    ("numpy", "argpartition"): "sorts",
    ("numpy", "vectorize"): "maps by `nm.vmap`: the function is made of numus's functions",
    ("numpy", "frompyfunc"): "maps by `nm.vmap`: the function is made of numus's functions",
    ("numpy", "apply_along_axis"): "maps by `nm.vmap`",
    ("numpy", "piecewise"): "each function is applied to all elements",
    ("numpy", "nanargmax"): "-1, and no error, where all elements are NaN",
    ("numpy", "nanargmin"): "-1, and no error, where all elements are NaN",
    ("numpy", "shares_memory"): "True if a write to one is seen in the other",
    ("numpy", "std"): "`correction` instead of `ddof`",
    ("numpy", "var"): "`correction` instead of `ddof`",
    ("numpy", "where"): "three arguments; `nm.nonzero` finds indices",
    ("numpy", "copyto"): "gives the tensor back",
    ("numpy", "put"): "gives the tensor back",
}
