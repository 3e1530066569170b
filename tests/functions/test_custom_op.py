"""Operations with kernels of the user's own, on every device that is here."""

import numpy as np
import pytest

import numus as nm
from numus.errors import CompileError, DeviceError, DTypeError, GradientError
from numus.kernels import CustomOp, Spec
from numus.runtime.devices import count

GPUS = [d for d in ("webgpu", "cuda") if count(d)]
DEVICES = ["cpu", "reference", *GPUS]
everywhere = pytest.mark.parametrize("device", DEVICES)
on_webgpu = pytest.mark.skipif("webgpu" not in GPUS, reason="there is no adapter for WebGPU here")


def _axpy(k, x, y, out, *, alpha):
    i = k.index
    out[i] = x[i] * alpha + k.exp(y[i])


axpy = CustomOp(
    "axpy",
    inputs=("x", "y"),
    outputs={"out": lambda x, y, alpha: x},
    scalars={"alpha": nm.float32},
    portable=_axpy,
    backward=lambda given, out, g, alpha: (g[0] * alpha, g[0] * nm.exp(given[1])),
)


def there(array, device, **kwargs):
    return nm.asarray(array, device=device, **kwargs)


@everywhere
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (5000,), (0, 4)])
def test_a_portable_kernel(device, shape):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    got = axpy(there(a, device), there(b, device), alpha=2.0)
    assert got.device == device
    np.testing.assert_allclose(got.numpy(), a * 2 + np.exp(b), rtol=1e-6, atol=1e-6)


@everywhere
def test_views_are_laid_out_first(device):
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = there(a, device)
    got = axpy(x.T[1:, ::-1], nm.zeros((5, 4), device=device), alpha=-1.0)
    np.testing.assert_array_equal(got.numpy(), 1 - a.T[1:, ::-1])


@everywhere
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e5m2", "int8", "uint16", "bool"])
def test_narrow_elements(device, kind):
    dtype = getattr(nm, kind)

    def body(k, x, y):
        value = x[k.index]
        y[k.index] = value & value if kind == "bool" else value + value

    twice = CustomOp("twice", inputs=("x",), outputs={"y": lambda x: x}, portable=body)
    a = (np.arange(101) % 23).astype(np.float32).astype(dtype.np)
    want = a if kind == "bool" else (a.astype(np.float32) * 2).astype(dtype.np)
    np.testing.assert_array_equal(twice(there(a, device)).numpy(), want)


@everywhere
def test_loops_and_conditions_that_differ_from_element_to_element(device):
    """Sums of the first `counts[i]` elements of each row, and how often half of them came up."""

    def body(k, x, counts, total, odd):
        i = k.index
        found = k.variable(0.0)
        times = k.variable(0, nm.int32)
        with k.loop(counts[i]) as j:
            found += x[i, j]
            with k.when(k.mod(k.cast(j, nm.int32), 2).eq(1)):
                times += 1
        total[i] = found.value
        odd[i] = times.value

    op = CustomOp(
        "first_of_rows",
        inputs=("x", "counts"),
        outputs={
            "total": lambda x, counts: Spec((x.shape[0],), x.dtype),
            "odd": lambda x, counts: Spec((x.shape[0],), nm.int32),
        },
        portable=body,
    )
    a = np.random.default_rng(1).standard_normal((300, 17)).astype(np.float32)
    n = (np.arange(300) * 7 % 18).astype(np.int32)
    total, odd = op(there(a, device), there(n, device))
    want = [a[i, : n[i]].astype(np.float64).sum() for i in range(300)]
    np.testing.assert_allclose(total.numpy(), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(odd.numpy(), n // 2)


@everywhere
def test_loops_that_all_elements_share(device):
    def body(k, a, b, c, *, scale):
        columns = b.shape[1]
        i, j = k.floor_divide(k.index, columns), k.mod(k.index, columns)
        total = k.variable(0.0)
        with k.loop(a.shape[1]) as q:
            total.set(k.fma(a[i, q], b[q, j], total.value))
        c[i, j] = total.value * scale

    product = CustomOp(
        "product",
        inputs=("a", "b"),
        outputs={"c": lambda a, b, scale: Spec((a.shape[0], b.shape[1]), a.dtype)},
        scalars={"scale": (nm.float32, lambda a, b: 1 / a.shape[1])},
        portable=body,
    )
    a, b = (np.random.default_rng(2).standard_normal(s).astype("f4") for s in ((9, 31), (31, 13)))
    got = product(there(a, device), there(b, device)).numpy()
    np.testing.assert_allclose(got, a @ b / 31, rtol=1e-5, atol=1e-6)


@everywhere
def test_masked_loads_and_counts_of_ones_own(device):
    """Neighbours to the left, with nothing before the first; two elements at a time."""

    def body(k, x, y):
        for half in range(2):
            i = k.index * 2 + half
            y[i] = x.load(i - 1, where=i > 0)

    shift = CustomOp(
        "shift",
        inputs=("x",),
        outputs={"y": lambda x: x},
        portable=body,
        count=lambda x: x.size // 2,
    )
    a = np.arange(1, 11, dtype=np.int32)
    np.testing.assert_array_equal(shift(there(a, device)).numpy(), np.arange(10))


# -- in transformations ---------------------------------------------------------------------------


@everywhere
def test_derivatives_of_any_order(device):
    a, b = np.float32([0.5, -1.0]), np.float32([0.1, 0.7])
    x, y = there(a, device), there(b, device)
    gx, gy = nm.grad(lambda x, y: axpy(x, y, alpha=3.0).sum(), argnums=(0, 1))(x, y)
    np.testing.assert_allclose(gx.numpy(), [3, 3])
    np.testing.assert_allclose(gy.numpy(), np.exp(b), rtol=1e-6)
    second = nm.grad(lambda y: nm.grad(lambda y: axpy(x, y, alpha=1.0).sum())(y).sum())(y)
    np.testing.assert_allclose(second.numpy(), np.exp(b), rtol=1e-6)
    x = there(a, device, requires_grad=True)
    axpy(x, y, alpha=4.0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [4, 4])


def test_derivatives_against_differences():
    op = CustomOp(
        "cube",
        inputs=("x",),
        outputs={"y": lambda x: x},
        portable=lambda k, x, y: y.__setitem__(k.index, x[k.index] * x[k.index] * x[k.index]),
        backward=lambda given, out, g: (3 * given[0] * given[0] * g[0],),
    )
    x = nm.asarray(np.linspace(-2, 2, 7))
    _, pull = nm.vjp(op, x)
    step = 1e-6
    want = (op(x + step) - op(x - step)).numpy() / (2 * step)
    np.testing.assert_allclose(
        pull(nm.ones(7, dtype=nm.float64))[0].numpy(), want, rtol=1e-6, atol=1e-9
    )


def test_no_derivative_is_an_error_and_no_zero():
    op = CustomOp("plain", inputs=("x",), outputs={"y": lambda x: x}, portable=_copy)
    with pytest.raises(GradientError, match=r"plain has no derivative.*backward="):
        nm.grad(lambda x: op(x).sum())(nm.ones(3))


def test_forward_mode_transposes_the_backward_rule():
    x, t = nm.asarray([0.5, 1.0, 2.0]), nm.asarray([1.0, 2.0, 3.0])
    _, tangent = nm.jvp(lambda x: axpy(x, x, alpha=1.0), (x,), (t,))
    np.testing.assert_allclose(tangent, (1 + np.exp(x)) * np.asarray(t), rtol=1e-5)


def _copy(k, x, y):
    y[k.index] = x[k.index]


@everywhere
def test_jit_and_vmap(device):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((4, 6)).astype(np.float32)
    x = there(a, device)
    step = nm.jit(lambda x: axpy(x + 1, x, alpha=2.0) * 2)
    for shift in (0.0, 1.0):
        want = ((a + shift + 1) * 2 + np.exp(a + shift)) * 2
        np.testing.assert_allclose(step(x + shift).numpy(), want, rtol=1e-5)
    one = a[0]
    rows = nm.vmap(lambda r: axpy(r, x[0], alpha=1.0))(x)
    np.testing.assert_allclose(rows.numpy(), a + np.exp(one), rtol=1e-6)
    columns = nm.vmap(nm.vmap(lambda p, q: axpy(p, q, alpha=1.0)), in_axes=(1, 1))(x, x)
    np.testing.assert_allclose(columns.numpy(), (a + np.exp(a)).T, rtol=1e-6)
    grads = nm.vmap(nm.grad(lambda r: axpy(r, r, alpha=1.0).sum()))(x)
    np.testing.assert_allclose(grads.numpy(), 1 + np.exp(a), rtol=1e-6)


def test_it_is_lazy():
    ran = []

    def reference(x):
        ran.append(x.shape)
        return x

    op = CustomOp(
        "watched", inputs=("x",), outputs={"y": lambda x: x}, portable=_copy, reference=reference
    )
    y = op(there(np.ones(3), "reference"))
    assert not ran
    y.numpy()
    assert ran == [(3,)]


# -- what is refused ------------------------------------------------------------------------------


def test_errors_say_what_was_wrong():
    x = nm.ones(3, device="cpu")
    with pytest.raises(TypeError, match="axpy takes 2 tensors \\(x, y\\), and was given 1"):
        axpy(x, alpha=1.0)
    with pytest.raises(TypeError, match="takes the scalars \\['alpha'\\], and was given \\[\\]"):
        axpy(x, x)
    with pytest.raises(TypeError, match="'alpha' is a Python number, not a Tensor"):
        axpy(x, x, alpha=nm.ones(()))
    with pytest.raises(ValueError, match="give a kernel: portable=, wgsl= or cuda="):
        CustomOp("empty", inputs=("x",), outputs={"y": lambda x: x})
    with pytest.raises(ValueError, match="different identifiers"):
        CustomOp("twice", inputs=("x",), outputs={"x": lambda x: x}, portable=_copy)
    only = CustomOp("only", inputs=("x",), outputs={"y": lambda x: x}, wgsl="@compute fn main() {}")
    with pytest.raises(DeviceError, match="only has no kernel for cpu: it has one in wgsl only"):
        only(x)
    whole = CustomOp(
        "whole",
        inputs=("x",),
        outputs={"y": lambda x, n: x},
        scalars={"n": nm.int32},
        portable=lambda k, x, y, n: None,
    )
    with pytest.raises(DTypeError, match="the scalar 'n' is int32, not"):
        whole(x, n=1.5)
    shapeless = CustomOp("shapeless", inputs=("x",), outputs={"y": lambda x: 3}, portable=_copy)
    with pytest.raises(TypeError, match="'y' has to give a Spec"):
        shapeless(x)


def test_errors_in_a_portable_kernel():
    x = nm.ones(3)

    def run(body, x=x):
        CustomOp("broken", inputs=("x",), outputs={"y": lambda x: x}, portable=body)(x)

    with pytest.raises(TypeError, match="x is an input, which is never written to"):
        run(lambda k, x, y: x.__setitem__(k.index, 1.0))
    with pytest.raises(TypeError, match="indices must be integers"):
        run(lambda k, x, y: x[1.5])
    with pytest.raises(AttributeError, match="have no 'softmax'; there are abs"):
        run(lambda k, x, y: k.softmax(x[k.index]))
    with pytest.raises(DTypeError, match="x is complex64, and portable kernels compute with real"):
        run(_copy, nm.ones(3, dtype=nm.complex64))


# -- WGSL -----------------------------------------------------------------------------------------

AXPY = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < p.n) { out[id.x] = x[id.x] * scalar(p.alpha) + y[id.x]; }
}
"""

DECLARED = """
struct Given { alpha: f32, n: u32 }  // in an order of its own
@group(0) @binding(0) var<storage, read> left: array<scalar>;
@group(0) @binding(1) var<storage, read> right: array<scalar>;
@group(0) @binding(2) var<storage, read_write> sum: array<scalar>;
@group(0) @binding(3) var<uniform> given: Given;
@compute @workgroup_size(8, 4)
fn axpy(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) at: u32) {
  let i = (group.y * 3u + group.x) * 32u + at;
  if (i < given.n) { sum[i] = left[i] * scalar(given.alpha) + right[i]; }
}
"""


def shader(wgsl, **kwargs):
    return CustomOp(
        "shaded",
        inputs=("x", "y"),
        outputs={"out": lambda x, y, n, alpha: x},
        scalars={"n": (nm.uint32, lambda x, y: x.size), "alpha": nm.float32},
        wgsl=wgsl,
        **kwargs,
    )


@on_webgpu
@pytest.mark.parametrize("kind", ["float32", "int32", "uint32", "float16", "float64", "int64"])
@pytest.mark.parametrize("declared", [False, True])
def test_shaders(kind, declared):
    op = (
        shader(DECLARED, grid=lambda x, y, n, alpha: (3, -(-n // 96))) if declared else shader(AXPY)
    )
    feature = {"float16": "shader-f16", "float64": "shader-f64", "int64": "shader-int64"}.get(kind)
    has = nm.device("webgpu").runtime.context.features
    a = np.arange(1000).astype(kind).reshape(10, 100) % 50
    x = there(a, "webgpu") if feature in (None, *has) or kind == "float16" else None
    if feature and feature not in has:
        if x is not None:
            with pytest.raises(DTypeError, match=feature):
                op(x, x, alpha=2.0)
        return
    np.testing.assert_array_equal(op(x, x, alpha=2.0).numpy(), a * 3)
    np.testing.assert_array_equal(op(x[1:], x[:-1], alpha=2.0).numpy(), a[1:] * 2 + a[:-1])
    odd = x.reshape(-1)[3:]  # begins where nothing can be bound
    np.testing.assert_array_equal(op(odd, odd, alpha=1.0).numpy(), a.reshape(-1)[3:] * 2)


@on_webgpu
def test_shaders_that_do_not_fit_are_refused():
    x = nm.ones(8).to("webgpu")

    def refused(old, new, match, error=CompileError, source=DECLARED):
        with pytest.raises(error, match=match):
            shader(source.replace(old, new), grid=lambda *a, **k: 1)(x, x, alpha=1.0).numpy()

    refused("storage, read>", "storage, read_write>", "left .binding 0. is an input, 'x'")
    refused("read_write> sum", "read> sum", "sum .binding 2. is an output, 'out'")
    refused("array<scalar>", "array<i32>", "array<i32>, but 'x' is float32", DTypeError)
    refused("alpha: f32", "beta: f32", "the op's scalars are")
    refused("@group(0) @binding(1)", "@group(1) @binding(1)", r"must be in @group\(0\)")
    refused("@compute", "", "one @compute function; this one has 0")
    refused("left[i]", "left[i", "rejects the shader")
    refused(
        "@group(0) @binding(1) var<storage, read> right: array<scalar>;", "", "binds 2 arrays, but"
    )
    refused("let i", "let i = nothing;", "rejects the shader")
    with pytest.raises(ValueError, match="cannot be read off the shader"):
        shader("const W = 64u;\n" + AXPY.replace("(64)", "(W)"))(x, x, alpha=1.0).numpy()
    most = nm.device("webgpu").runtime.context.limits["max-compute-workgroups-per-dimension"]
    with pytest.raises(DeviceError, match="max-compute-workgroups-per-dimension"):
        shader(AXPY, grid=lambda *a, **k: most + 1)(x, x, alpha=1.0).numpy()
    words = nm.ones(8, dtype=nm.int8).to("webgpu")
    with pytest.raises(DTypeError, match="WGSL has no scalar for int8"):
        shader(AXPY)(words, words, alpha=1.0)
    by_dtype = shader({"float32": AXPY})
    by_dtype(x, x, alpha=1.0)
    with pytest.raises(DTypeError, match="kernel for float32, not for int32"):
        by_dtype(x.astype(nm.int32), x.astype(nm.int32), alpha=1.0)


@on_webgpu
def test_a_shader_is_compiled_once_and_survives_the_loss_of_its_device():
    op = shader(AXPY + "// once")
    x = nm.ones(100).to("webgpu")
    for _ in range(3):
        op(x, x, alpha=2.0).numpy()
    runtime = nm.device("webgpu").runtime
    assert len([s for s in runtime.user_kernels._pipelines if s.text.endswith("// once")]) == 1
    runtime.context.device.destroy()
    with pytest.raises(DeviceError, match="lost"):
        op(x, x, alpha=2.0).numpy()
    x = nm.ones(100).to("webgpu")
    np.testing.assert_array_equal(op(x, x, alpha=2.0).numpy(), np.full(100, 3.0))


# -- CUDA -----------------------------------------------------------------------------------------

PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry axpy(
  .param .u64 x, .param .u64 y, .param .u64 out, .param .u32 n, .param .f32 alpha)
{
  .reg .pred %p; .reg .b32 %i, %b, %t, %n; .reg .f32 %u, %v, %a; .reg .b64 %x, %y, %o, %w;
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u64 %o, [out];
  ld.param.u32 %n, [n]; ld.param.f32 %a, [alpha];
  mov.u32 %i, %ctaid.x; mov.u32 %b, %ntid.x; mov.u32 %t, %tid.x;
  mad.lo.u32 %i, %i, %b, %t;
  setp.ge.u32 %p, %i, %n;
  @%p bra done;
  mul.wide.u32 %w, %i, 4;
  add.u64 %x, %x, %w; add.u64 %y, %y, %w; add.u64 %o, %o, %w;
  ld.global.f32 %u, [%x]; ld.global.f32 %v, [%y];
  fma.rn.f32 %u, %u, %a, %v;
  st.global.f32 [%o], %u;
done:
  ret;
}
"""

CPP = """
extern "C" __global__ void axpy(
    const scalar* x, const scalar* y, scalar* out, unsigned n, float alpha) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * (scalar)alpha + y[i];
}
"""


def cuda_op(source):
    return CustomOp(
        "shaded",
        inputs=("x", "y"),
        outputs={"out": lambda x, y, n, alpha: x},
        scalars={"n": (nm.uint32, lambda x, y: x.size), "alpha": nm.float32},
        cuda=source,
    )


@pytest.mark.skipif("cuda" not in GPUS, reason="there is no NVIDIA GPU here")
@pytest.mark.parametrize("source", [PTX, CPP], ids=["ptx", "c++"])
def test_kernels_for_cuda(source):
    op = cuda_op(source)
    a = np.arange(1000, dtype=np.float32)
    x = there(a, "cuda")
    try:
        got = op(x, x[::-1], alpha=2.0).numpy()
    except DeviceError as error:
        if "NVRTC" in str(error):
            pytest.skip(str(error))
        raise
    np.testing.assert_array_equal(got, a * 2 + a[::-1])
    if source is CPP:
        got = op(x.astype(nm.float64), x.astype(nm.float64), alpha=2.0)
        np.testing.assert_array_equal(got.numpy(), a * 3.0)
    with pytest.raises(CompileError, match="rejects the kernel"):
        cuda_op(source.replace("alpha", "alpha!"))(x, x, alpha=1.0).numpy()


def test_parsing_of_a_cuda_source():
    from numus.runtime.cuda.user_kernels import parse

    arrays = [("x", nm.float16)], [("out", nm.float16)], [("alpha", nm.float32)]
    assert parse("op", PTX, *arrays).entry == "axpy"
    found = parse("op", CPP, *arrays)
    assert (found.entry, found.is_ptx, found.scalars) == ("axpy", False, (("alpha", "float32"),))
    assert found.text.startswith("#include <cuda_fp16.h>\ntypedef __half scalar;")
    with pytest.raises(CompileError, match='declare the kernel extern "C"'):
        parse("op", CPP.replace('extern "C"', ""), *arrays)
    with pytest.raises(CompileError, match=r"must have one kernel .* this one has 0"):
        parse("op", "int nothing;", *arrays)
    with pytest.raises(DTypeError, match="scalar 'c' is complex64"):
        parse("op", CPP, *arrays[:2], [("c", nm.complex64)])
