"""GPU benchmarks of `tools.cuda_report`: numus against PyTorch on an NVIDIA GPU.

`tools/cuda_timing.py` measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tools.cuda_timing import Row

ABOUT = {
    "rows": "Ratios are the best time of PyTorch (eager, or `torch.compile`) over numus's: above "
    "1, numus is faster. First, back-to-back calls; then calls that are synchronised one by one, "
    "the median of 15, eager and in `nm.jit`. Errors are relative differences from PyTorch's "
    "results.",
    "long": "Rows that exceed the registers of one CTA: several CTAs share a row, as a thread "
    "block cluster or, above 8 CTAs, as cooperative blocks that exchange partial results through "
    "global flags.",
    "gemm": 'numus\'s own kernels (`nm.kernels.prefer("native")`) and the choice of `auto` (the '
    "default), as single calls and, up to twenty at a time, in a CUDA graph. Ratios are PyTorch's "
    "time over numus's. Sizes are M, N, K; `nt`, `tn`, `tt`: transposed operands, as the weights "
    "of a linear layer are.",
    "attention": "Causal attention against the default backend of `scaled_dot_product_attention` "
    "(cuDNN for 16-bit floats); convolutions against cuDNN; `float32` without TF32, `tf32` with "
    "it on both sides.",
}


def rows(torch: Any, nm: Any) -> Iterator[Row]:
    """Elementwise operations, reductions, scans, sorts."""
    F = torch.nn.functional
    n, wide = 1 << 28, (16384, 8192)
    size = 4 * wide[0] * wide[1]
    yield Row(
        *("relu(x*2+1) 2^28", [(n,)], "float32"),
        *(lambda x: nm.relu(x * 2 + 1), lambda x: torch.relu(x * 2 + 1)),
        *(8 * n, 0, True),
    )
    yield Row(
        *("sum relu(x*2+1) 2^28", [(n,)], "float32"),
        *(lambda x: nm.relu(x * 2 + 1).sum(), lambda x: torch.relu(x * 2 + 1).sum()),
        *(4 * n, 0, True),
    )
    yield Row("sum 2^28", [(n,)], "float32", lambda x: x.sum(), lambda x: x.sum(), 4 * n)
    yield Row(
        *("cumsum 2^28", [(n,)], "float32"),
        *(lambda x: nm.cumsum(x, axis=0), lambda x: x.cumsum(0), 8 * n),
    )
    yield Row("sort 2^24", [(1 << 24,)], "float32", nm.sort, lambda x: torch.sort(x)[0], 8 << 24)
    yield Row(
        *("softmax 16384x8192", [wide], "float32"),
        *(lambda x: nm.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), 2 * size, 0, True),
    )
    yield Row(
        *("layer_norm 16384x8192", [wide, (8192,), (8192,)], "float32", nm.layer_norm),
        *(lambda x, w, b: F.layer_norm(x, (8192,), w, b), 2 * size, 0, True),
    )
    yield Row(
        *("sum axis 0 16384x8192", [wide], "float32"),
        *(lambda x: nm.sum(x, axis=0), lambda x: x.sum(0), size, 0, True),
    )
    yield Row(
        *("x + x.T 8192", [(8192, 8192)], "float32"),
        *(lambda x: x + x.T, lambda x: x + x.T, 8 * 8192**2, 0, True),
    )
    yield Row(
        *("gelu(x + b) 16384x8192", [wide, (8192,)], "bfloat16"),
        *(lambda x, b: nm.gelu(x + b), lambda x, b: F.gelu(x + b), size, 0, True),
    )
    yield from _other_rows(torch, nm)


def _other_rows(torch: Any, nm: Any) -> Iterator[Row]:
    """Short rows, strided access, arg reductions, top-k."""
    square, images = (8192, 8192), (64, 256, 56, 56)
    size = 4 * 8192**2
    yield Row(
        *("softmax 65536x256", [(65536, 256)], "float32"),
        *(lambda x: nm.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), 8 << 24),
    )
    yield Row(
        *("cumsum axis 0 8192", [square], "float32"),
        *(lambda x: nm.cumsum(x, axis=0), lambda x: x.cumsum(0), 2 * size),
    )
    yield Row(
        *("cumsum axis 1 65536x256", [(65536, 256)], "float32"),
        *(lambda x: nm.cumsum(x, axis=1), lambda x: x.cumsum(1), 8 << 24),
    )
    yield Row(
        *("var axis 0 8192", [square], "float32"),
        *(lambda x: nm.var(x, axis=0), lambda x: torch.var(x, 0, correction=0), size),
    )
    yield Row("argmax 8192", [square], "float32", nm.argmax, lambda x: x.argmax(), size)
    yield Row(
        *("sum axes 0, 2 of 64x512x1024", [(64, 512, 1024)], "float32"),
        *(lambda x: nm.sum(x, axis=(0, 2)), lambda x: x.sum((0, 2)), 4 << 25),
    )
    yield Row(
        *("channels last 64x256x56x56", [images], "bfloat16"),
        lambda x: nm.copy(nm.permute_dims(x, (0, 2, 3, 1))),
        *(lambda x: x.permute(0, 2, 3, 1).contiguous(), 4 * 64 * 256 * 56**2),
    )
    yield Row(
        *("heads 32x512x16x64", [(32, 512, 16, 64)], "bfloat16"),
        lambda x: nm.copy(nm.permute_dims(x, (0, 2, 1, 3))),
        *(lambda x: x.permute(0, 2, 1, 3).contiguous(), 4 << 24),
    )
    yield Row(
        *("topk 50 of 128x50257", [(128, 50257)], "float32"),
        *(lambda x: nm.topk(x, 50).values, lambda x: torch.topk(x, 50).values, 4 * 128 * 50257),
    )
    yield Row(
        *("topk 100 of 2^24", [(1 << 24,)], "float32"),
        *(lambda x: nm.topk(x, 100).values, lambda x: torch.topk(x, 100).values, 4 << 24),
    )


def long_rows(torch: Any, nm: Any) -> Iterator[Row]:
    """Softmax, its gradient and layer norm of rows that span several CTAs."""
    F = torch.nn.functional

    def ours(x: Any) -> Any:
        return nm.softmax(x, axis=-1)

    def theirs(x: Any) -> Any:
        return torch.softmax(x, -1)

    def our_gradient(y: Any, g: Any) -> Any:
        return y * (g - (y * g).sum(axis=-1, keepdims=True))

    def their_gradient(y: Any, g: Any) -> Any:
        return torch._softmax_backward_data(g, y, -1, y.dtype)

    for rows, length, dtype, compiled in (
        (2048, 65536, "float32", True),
        (4096, 65536, "bfloat16", False),
        (2670, 50257, "float32", False),
        (5340, 50257, "bfloat16", True),
        (1024, 262144, "bfloat16", False),
        (134, 1_000_000, "float32", True),
        (4, 1_000_000, "float32", False),
    ):
        size = (4 if dtype == "float32" else 2) * rows * length
        name = f"softmax {rows}x{length} {dtype}"
        yield Row(name, [(rows, length)], dtype, ours, theirs, 2 * size, 0, compiled)
    for length in (50257, 65536):
        shape = ((1 << 26) // length, length)
        yield Row(
            *(f"softmax gradient {shape[0]}x{length}", [shape, shape], "float32"),
            *(our_gradient, their_gradient, 12 * shape[0] * length),
        )
        yield Row(
            *(f"layer_norm {shape[0]}x{length}", [shape, (length,), (length,)], "float32"),
            *(nm.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b)),
            8 * shape[0] * length,
        )


def attention(torch: Any, nm: Any) -> Iterator[Row]:
    """Causal attention, forward and with gradients; convolutions."""
    F = torch.nn.functional
    attend = partial(nm.scaled_dot_product_attention, is_causal=True)

    def ours(q: Any, k: Any, v: Any, g: Any) -> Any:
        return nm.stack(list(nm.vjp(attend, q, k, v)[1](g)))

    def theirs(q: Any, k: Any, v: Any, g: Any) -> Any:
        xs = [x.detach().requires_grad_() for x in (q, k, v)]
        F.scaled_dot_product_attention(*xs, is_causal=True).backward(g)
        return torch.stack([x.grad for x in xs])

    for dtype, shape in (
        ("bfloat16", (4, 16, 4096, 128)),
        ("bfloat16", (4, 16, 4096, 64)),
        ("float32", (4, 16, 2048, 64)),
    ):
        flops = 2 * shape[0] * shape[1] * shape[2] ** 2 * shape[3]  # causal: half of the scores
        name = f"attention {'x'.join(map(str, shape))} {dtype}"
        plain = partial(F.scaled_dot_product_attention, is_causal=True)
        yield Row(name, [shape] * 3, dtype, attend, plain, 0, flops)
        yield Row(f"{name}, and gradients", [shape] * 4, dtype, ours, theirs, 0, 3.5 * flops)
    yield from _convolutions(torch, nm)


# Channels and spatial extent of 64 images, and whether gradients are measured too.
_CONVOLUTIONS: dict[str, Sequence[tuple[int, int, bool]]] = {
    "bfloat16": ((64, 56, True), (256, 28, False), (256, 56, False)),
    "float32": ((64, 56, False), (256, 28, True)),
    "tf32": ((256, 28, False),),
}


def _convolutions(torch: Any, nm: Any) -> Iterator[Row]:
    """3 x 3 convolutions in each precision."""
    F = torch.nn.functional

    def ours(precision: str, x: Any, w: Any) -> Any:
        with nm.matmul_precision(precision):
            return nm.conv2d(x, w, padding=1)

    def theirs(rounds: bool, x: Any, w: Any) -> Any:
        torch.backends.cudnn.allow_tf32 = rounds
        return F.conv2d(x, w, padding=1)

    def our_gradients(precision: str, x: Any, w: Any, g: Any) -> Any:
        by_data, by_weights = nm.vjp(partial(ours, precision), x, w)[1](g)
        return nm.concat([by_data.reshape(-1), by_weights.reshape(-1)])

    def their_gradients(rounds: bool, x: Any, w: Any, g: Any) -> Any:
        torch.backends.cudnn.allow_tf32 = rounds
        by_data = torch.nn.grad.conv2d_input(x.shape, w, g, padding=1)
        by_weights = torch.nn.grad.conv2d_weight(x, w.shape, g, padding=1)
        return torch.cat([by_data.reshape(-1), by_weights.reshape(-1)])

    for dtype, sizes in _CONVOLUTIONS.items():
        rounds, kind = dtype == "tf32", "float32" if dtype == "tf32" else dtype
        precision = "tf32" if rounds else "highest"
        for channels, space, gradients in sizes:
            data, weights = (64, channels, space, space), (channels, channels, 3, 3)
            name = f"conv2d {'x'.join(map(str, data))} 3x3 {dtype}"
            flops = 2 * 64 * (channels * space * 3) ** 2
            both = (partial(ours, precision), partial(theirs, rounds))
            yield Row(name, [data, weights], kind, *both, 0, flops)
            if gradients:
                both = (partial(our_gradients, precision), partial(their_gradients, rounds))
                more = f"{name}, gradients"
                yield Row(more, [data, weights, data], kind, *both, 0, 2 * flops)


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


_TRANSPOSES: dict[str, Callable[..., Any]] = {
    "nn": _matmul,
    "nt": lambda a, b: a @ b.mT,
    "tn": lambda a, b: a.mT @ b,
    "tt": lambda a, b: a.mT @ b.mT,
}
# M, N, K and transposes by dtype.
_SIZES: dict[str, Sequence[tuple[int, int, int, str]]] = {
    "bfloat16": (
        *((n, n, n, "nn") for n in (512, 1024, 2048, 4096, 8192)),
        *((4096, 4096, 4096, t) for t in ("nt", "tn", "tt")),
        *((300, 700, 1000, t) for t in _TRANSPOSES),
        *((4095, 4095, 4095, "nn"), (1001, 1003, 1005, "nn"), (1001, 1003, 1008, "nt")),
        *((1, 4096, 4096, "nn"), (8, 4096, 4096, "nt"), (64, 8192, 8192, "nn")),
        *((8, 4096, 4096, "nn"), (16, 4096, 4096, "nt")),
        *((128, 256, 16384, "nn"), (4096, 4096, 1, "nn"), (4096, 4096, 8, "nn")),
        *((16384, 3072, 768, "nt"), (3072, 768, 16384, "tn"), (4096, 50257, 768, "nt")),
    ),
    "float16": ((1024, 1024, 1024, "nn"), (4096, 4096, 4096, "nn")),
    "float32": (
        *((n, n, n, "nn") for n in (256, 1024, 2048, 4096)),
        *((4096, 4096, 4096, "nt"), (2048, 2048, 2048, "tn"), (2048, 2048, 2048, "tt")),
        *((300, 700, 1000, t) for t in _TRANSPOSES),
        *((1001, 1003, 1005, "nn"), (64, 8192, 8192, "nn"), (128, 256, 16384, "nn")),
        *((1, 4096, 4096, "nn"), (1, 4096, 4096, "nt"), (8, 4096, 4096, "nn")),
        *((4096, 4096, 1, "nn"), (4096, 4096, 8, "nn")),
    ),
    "tf32": (
        *((n, n, n, "nn") for n in (512, 1024, 4096)),
        *((300, 700, 1000, "nn"), (1001, 1003, 1005, "nn")),
    ),
    "float64": (
        *((n, n, n, "nn") for n in (512, 1024, 4096)),
        *((2048, 2048, 2048, "nt"), (300, 700, 1000, "nn"), (64, 8192, 8192, "nn")),
    ),
    "complex64": ((256, 256, 256, "nn"), (1024, 1024, 1024, "nn"), (300, 700, 1000, "nn")),
    "complex128": ((512, 512, 512, "nn"),),
}
# Shapes of batched operands and vectors.
_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "batch 64 of 512": ((64, 512, 512), (64, 512, 512)),
    "batch 512 of 64": ((512, 64, 64), (512, 64, 64)),
    "batch 8x16 of 128x128x64": ((8, 16, 128, 64), (8, 16, 64, 128)),
    "64x512x512 @ 512x512": ((64, 512, 512), (512, 512)),
    "batch 16x1 @ 8 of 256x256x64": ((16, 1, 256, 64), (8, 64, 256)),
    "matrix @ vector 4096": ((4096, 4096), (4096,)),
    "vector @ matrix 4096": ((4096,), (4096, 4096)),
}


def gemms(torch: Any, nm: Any) -> Iterator[Row]:
    """Matmuls of many shapes and dtypes."""
    F = torch.nn.functional

    def by_tf32(f: Callable[..., Any], a: Any, b: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        y = f(a, b)
        torch.backends.cuda.matmul.allow_tf32 = False
        return y

    def ours_by_tf32(f: Callable[..., Any], a: Any, b: Any) -> Any:
        with nm.matmul_precision("tf32"):
            return f(a, b)

    for dtype, sizes in _SIZES.items():
        for m, n, k, transposes in sizes:
            a, b = ((m, k), (k, n))
            shapes = [s if t == "n" else s[::-1] for s, t in zip((a, b), transposes, strict=True)]
            name = f"{dtype} {m}" if m == n == k else f"{dtype} {m}x{n}x{k}"
            name += "" if transposes == "nn" else f" {transposes}"
            f = _TRANSPOSES[transposes]
            both = (partial(ours_by_tf32, f), partial(by_tf32, f)) if dtype == "tf32" else (f, f)
            kind = "float32" if dtype == "tf32" else dtype
            yield Row(name, shapes, kind, *both, 0, 2 * m * n * k)
    for dtype in ("bfloat16", "float32", "float64", "tf32"):
        for name, (left, right) in _SHAPES.items():
            if dtype == "bfloat16" or name in ("batch 64 of 512", "vector @ matrix 4096"):
                both = _matmul, _matmul
                if dtype == "tf32":
                    both = partial(ours_by_tf32, _matmul), partial(by_tf32, _matmul)
                kind = "float32" if dtype == "tf32" else dtype
                yield Row(f"{dtype} {name}", [left, right], kind, *both)
    yield Row(
        *("bfloat16 x[::2] @ y[:, :512]", [(2048, 1024), (1024, 1024)], "bfloat16"),
        *(lambda x, y: x[::2] @ y[:, :512], lambda x, y: x[::2] @ y[:, :512]),
    )
    yield Row(
        *("float32 x[:, ::2] @ y", [(1024, 2048), (1024, 1024)], "float32"),
        *(lambda x, y: x[:, ::2] @ y, lambda x, y: x[:, ::2] @ y),
    )
    one = torch.ones(())
    for k in (1024, 4096):
        yield Row(
            *(f"float8_e4m3fn {k} nt", [(k, k), (k, k)], "float8_e4m3fn"),
            lambda a, b: nm.matmul(a, b.T, dtype=nm.bfloat16),
            lambda a, b: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16),
            *(0, 2 * k**3),
        )
        yield Row(
            *(f"int8 {k} nt", [(k, k), (k, k)], "int8"),
            lambda a, b: nm.matmul(a, b.T, dtype=nm.int32),
            lambda a, b: torch._int_mm(a, b.T),
            *(0, 2 * k**3),
        )
    for dtype, m, n, k in (
        *(("bfloat16", 4096, 4096, 4096), ("bfloat16", 16384, 3072, 768)),
        *(("bfloat16", 512, 512, 512), ("float32", 4096, 4096, 4096)),
    ):
        shapes = [(m, k), (n, k), (n,)]
        yield Row(
            *(f"{dtype} {m}x{n}x{k} x @ w.T + b", shapes, dtype),
            *(lambda x, w, b: x @ w.T + b, F.linear, 0, 2 * m * n * k),
        )
        yield Row(
            *(f"{dtype} {m}x{n}x{k} gelu(x @ w.T + b)", shapes, dtype),
            *(lambda x, w, b: nm.gelu(x @ w.T + b), lambda x, w, b: F.gelu(F.linear(x, w, b))),
            *(0, 2 * m * n * k),
        )
