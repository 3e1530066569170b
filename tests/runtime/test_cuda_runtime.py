"""The CUDA runtime on the fake driver: fast calls, memory, graphs, errors."""

import ctypes
import dataclasses
import gc
import re
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import numus as nm
from numus.compiler.plan import clear_plans
from numus.dispatch.call_cache import eager_calls
from numus.errors import CompileError, DeviceError, OutOfMemoryError
from numus.kernels.vendor import registry
from numus.lru import LruTable
from numus.runtime import launch_lock
from numus.runtime.contract import NativeLaunch
from numus.runtime.cuda import compiler, cublas, cublaslt, launch
from numus.runtime.cuda import driver as cuda_driver

MIB = 1 << 20


def tensor(*shape):
    return nm.asarray(np.ones(shape, np.float32))


def test_repeated_operations_are_fast_calls(driver):
    x = tensor(8, 8)
    function = nm.jit(lambda x: x * 2)
    for f in (lambda: x + x, lambda: x @ x, lambda: function(x)):
        for _ in range(3):
            nm.eval(f())
        before = driver.started
        results = [f() for _ in range(10)]
        nm.eval(results[-1])
        for r in results:
            nm.eval(r)
        assert driver.started == before + 10
        places = {r._node.view.storage.memory.address for r in results}
        assert len(places) == 10
    assert {type(call).__name__ for call in eager_calls.structures.values()} == {
        "builtin_function_or_method"
    }


def test_modules_of_dropped_kernels_are_unloaded(driver, monkeypatch, fast_gc):
    monkeypatch.setattr(compiler, "_RETIRED_MODULES", 3)
    compiling = nm.device(driver.device).runtime.compiler
    monkeypatch.setattr(compiling, "_programs", LruTable(2))
    x = tensor(8)
    used = nm.jit(lambda x: x - 0.125)
    used(x)
    for count in range(1, 12):
        y = x
        for _ in range(count):
            y = nm.sqrt(y)
        nm.eval(y)
        del y
        clear_plans()
        eager_calls.clear()
        gc.collect()
    loaded, unloaded = (driver.calls[f"cuModule{name}"] for name in ("LoadData", "Unload"))
    assert loaded >= 12
    assert unloaded >= 6
    assert len(compiling.retired) < 3
    used(x)
    assert driver.calls["cuModuleLoadData"] == loaded  # it was in use


def test_a_fake_driver_leaves_the_count_of_devices_alone(driver):
    code = "from numus.runtime.cuda import driver; print(driver.count())"
    command = [sys.executable, "-c", code]
    real = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert cuda_driver.count() == int(real)


def test_repeated_compositions_build_no_graph_in_python(driver):
    """Templates of functions need the runtime's fast-call VM."""
    clear_plans()  # many sizes of other tests make templates rarer
    x = tensor(4, 16)
    for _ in range(6):
        nm.eval(nm.softmax(x))
    files = set()

    def note(frame, event, arg):
        if event == "call":
            files.add(frame.f_code.co_filename.rpartition("numus/")[2])

    sys.setprofile(note)
    try:
        nm.eval(nm.softmax(x))
    finally:
        sys.setprofile(None)
    assert "functions/template_cache.py" in files
    assert not [file for file in files if file.startswith(("functions/layers", "primitives"))]


def test_large_temporaries_are_allocated_by_fast_calls(driver, monkeypatch):
    monkeypatch.setattr(
        launch, "TUNING", dataclasses.replace(launch.TUNING, max_kept_workspace_bytes=0)
    )
    x = tensor(512, 512)
    memory = nm.device(driver.device).runtime.memory
    for _ in range(3):
        nm.eval((x @ x) @ x)
    assert {type(call).__name__ for call in eager_calls.structures.values()} == {
        "builtin_function_or_method"
    }
    before, in_use, started = memory.allocations, memory.in_use, driver.started
    for _ in range(5):
        nm.eval((x @ x) @ x)
    assert memory.allocations == before + 10  # for a temporary and a result each
    assert memory.in_use == in_use
    assert driver.started > started
    memory.empty()
    driver.total = 0  # the device has no more
    with pytest.raises(OutOfMemoryError):
        nm.eval((x @ x) @ x)


def test_symbols_name_the_operations(driver, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))  # nothing is on disk
    given, asked = [], []

    def add(state, kind, data, *rest):
        given.extend(re.findall(r"\.entry (\w+)", data.decode()))
        return 0, 1

    def ask(module, name):
        asked.append(name.decode())
        return 0, 1

    driver.cuLinkAddData, driver.cuModuleGetFunction = add, ask
    x = tensor(8, 8)
    nm.eval(nm.softmax(x * 2, axis=-1))
    several = x
    for _ in range(12):
        several = nm.sin(several) + 1
    nm.eval(several)
    assert asked == given
    assert len(asked) == 2
    assert "row_reduction_reduce_max_reduce_sum" in asked[0]
    assert asked[1].startswith("numus_")
    assert len(asked[1]) < 100


def test_dlpack_imports_host_memory_in_place(driver):
    x = np.arange(3.0)
    for copy in (None, False, True):
        assert nm.from_dlpack(x, copy=copy).device == "cpu"
    moved = nm.from_dlpack(x, device=driver.device)
    assert moved.device == driver.device
    assert moved.tolist() == [0, 1, 2]
    assert nm.asarray(x).device == driver.device


def test_failed_launches_name_the_kernel(driver):
    x = tensor(8, 8)
    for _ in range(3):
        nm.eval(x + x)
    driver.code.value = 700
    with pytest.raises(DeviceError, match=r"launching kernel 'pointwise' \(add\): CUDA_ERROR_700"):
        nm.eval(x + x)
    driver.code.value = 0
    nm.eval(x + x)


def test_asynchronous_errors_name_the_last_kernels(driver):
    x = tensor(8, 8)
    for _ in range(3):
        nm.eval(x + x)
    for _ in range(3):
        nm.eval(x * x)
    runtime = nm.device(driver.device).runtime
    driver.cuEventSynchronize = lambda event: (716,)
    told = r"of which the last were 'pointwise' \(mul\): CUDA_ERROR_716; the process cannot use"
    for wait in (runtime.synchronize, x.numpy, lambda: nm.asarray(np.ones(3))):
        with pytest.raises(DeviceError, match=told):
            wait()


def test_recovery_from_out_of_memory(driver):
    runtime = nm.device(driver.device).runtime
    held = tensor(5 * MIB)  # of 4 bytes
    for _ in range(4):
        nm.eval(held + 1)
    with pytest.raises(
        OutOfMemoryError, match=r"cuda cannot provide 0.08 GiB: .* free tensors, or use smaller"
    ):
        nm.eval(nm.zeros((20 * MIB,)) + 1)
    other = tensor(3 * MIB)  # what was free and of another size went back to the driver
    nm.eval(other + 1)
    assert runtime.memory_stats()["in_use"] >= 32 * MIB
    del held, other
    gc.collect()
    nm.eval(tensor(12 * MIB))


@pytest.mark.parametrize("kernels", [2, 4, 20])
def test_graph_replays_retain_no_memory(kernels, driver):
    """Long launch lists from Python, others from fast calls."""
    x = tensor(16, 16)

    @nm.jit
    def step(x):
        for _ in range(kernels):
            x = nm.cumsum(x, axis=0)
        return x

    def started():
        return driver.calls["cuGraphLaunch"], driver.native_calls["cuGraphLaunch"].value

    state = x
    for _ in range(30):
        state = step(state)
    gc.collect()
    runtime = nm.device(driver.device).runtime
    before, made = runtime.memory_stats(), driver.calls.copy()
    by_python, natively = started()
    for _ in range(300):
        state = step(state)
    gc.collect()
    after = runtime.memory_stats()
    assert (after["in_use"], after["mapped"]) == (before["in_use"], before["mapped"])
    more = (300, 0) if kernels > 16 else (0, 300)
    assert started() == (by_python + more[0], natively + more[1])
    assert driver.calls["cuGraphInstantiate"] == made["cuGraphInstantiate"]


class Library:
    """A matmul launched natively, or from Python where memory is unaligned."""

    workspace = 1024
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * 16)

    def __init__(self, runtime, product):
        self.natively, self.by_python = [], []

        def launch(*words):
            self.natively.append(words)
            return 0

        self._function = self.kind(launch)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        self.native = NativeLaunch(
            address, tuple(range(16)), ((3, 0, 0), (5, 1, 32), (7, 2, 0), (9, 3, 0))
        )
        made.append(self)

    def __call__(self, addresses, workspace):
        self.by_python.append((addresses, workspace))


made: list[Library] = []


def test_results_recur_at_the_same_addresses(driver):
    def chain(x):  # independent scans would share launches
        for _ in range(8):
            x = nm.cumsum(x, axis=0)
        return x

    step = nm.jit(lambda *xs: [chain(x) for x in xs])
    xs = [tensor(16, 16) for _ in range(2)]
    for _ in range(3):
        nm.eval(step(*xs))
    before = driver.calls["cuGraphLaunch"]
    for _ in range(20):
        nm.eval(step(*xs))
    assert driver.calls["cuGraphLaunch"] == before + 20


@pytest.fixture
def library(driver, monkeypatch):
    """A vendor whose library takes every matmul."""
    monkeypatch.setattr(registry._State, "registered", ())
    made.clear()
    yes = lambda product, target: True
    nm.kernels.register(nm.kernels.Vendor("library", "contract", yes, yes, Library))
    return Library


def test_repeated_vendor_launches_become_a_graph(driver, library):
    x, y = tensor(16, 16), tensor(16, 16)
    counts = lambda: [
        driver.native_calls[f"cu{name}"].value
        for name in ("GraphInstantiateWithFlags", "GraphLaunch", "GraphExecDestroy")
    ]
    for _ in range(20):
        nm.eval(x @ y)
    (launched,) = made
    graphs, starts, ended = counts()
    # each place of the result is asked for as it comes, and once more while it is recorded
    assert 1 <= graphs <= 3
    assert starts + len(launched.natively) == 20 + graphs
    assert len(launched.natively) <= 12
    assert ended == 0
    held = [x @ y for _ in range(8)]  # as many places: no graph is for any of them for long
    for z in held:
        nm.eval(z)
    assert counts()[0] == graphs
    assert counts()[1] < starts + 8
    assert len({z._node.view.storage.memory.address for z in held}) == 8
    del held, z
    eager_calls.clear()
    clear_plans()
    gc.collect()
    nm.eval(x + y)
    assert counts()[2] + driver.calls["cuGraphExecDestroy"] == counts()[0]


@pytest.mark.parametrize("workspace", [0, 1024])
def test_vendor_kernels_are_launched_natively(workspace, driver, library, monkeypatch):
    monkeypatch.setattr(Library, "workspace", workspace)
    x, y = tensor(16, 16), tensor(16, 16)
    kept = []
    for _ in range(4):
        z = x @ y
        nm.eval(z)
        kept.append(z)
    (first,) = made
    assert (len(first.natively), first.by_python) == (4, [])
    words = first.natively[-1]
    a, b, c = (t._node.view.storage.memory.address for t in (x, y, z))
    assert (words[3], words[5], words[7]) == (a, b + 32, c)
    assert words[9] % 16 == 0 if workspace else words[9] == 9
    assert [words[i] for i in (0, 1, 2, 4, 15)] == [0, 1, 2, 4, 15]
    flat = tensor(257)
    nm.eval(flat)
    odd = flat[1:].reshape(16, 16)
    nm.eval(odd)
    for _ in range(3):
        nm.eval(odd @ y)
    total = [lib for lib in made if lib.by_python]
    assert sum(len(lib.by_python) for lib in total) == 3
    (addresses, _), *_ = total[0].by_python
    assert addresses[0] % 16 == 4


@pytest.mark.parametrize("has_one", [True, False])
def test_fallback_where_the_library_has_no_algorithm(has_one, driver, monkeypatch):
    asked = []

    def matmul(runtime, product):
        asked.append(product)
        if not has_one:
            raise DeviceError("no algorithm")
        return Library(runtime, product)

    monkeypatch.setattr(cublaslt, "library", lambda: Library)
    monkeypatch.setattr(cublaslt, "Matmul", matmul)
    cublaslt.has_algorithm.cache_clear()
    x = tensor(64, 64)

    def rounded():
        with nm.matmul_precision("tf32"):
            return x @ x

    for f in (lambda: x @ x, rounded):
        (kernel,) = nm.explain(f).kernels
        assert (kernel.name == "cublaslt") is has_one
    assert [p.tf32 for p in dict.fromkeys(asked)] == [False, True]
    cublaslt.has_algorithm.cache_clear()


class Producer:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return (2, 0)


def test_rejected_and_dropped_capsules(driver):
    runtime = nm.device(driver.device).runtime
    for versioned in ((1, 0), None):
        x = tensor(1000, 1000) + 1
        nm.eval(x)
        held = runtime.memory_stats()["in_use"]
        capsule = runtime.export_dlpack(
            *(x._node.view.storage.memory, 0, (2, 3), (3, 1), nm.float32, 1),
            *(versioned is not None, True),
        )

        with pytest.raises((BufferError, RuntimeError), match=r"[Uu]nsupported device"):
            np.from_dlpack(Producer(capsule))
        del x
        assert runtime.memory_stats()["in_use"] == held  # the capsule still holds it
        del capsule
        gc.collect()
        assert runtime.memory_stats()["in_use"] < held


def test_imported_memory_is_released_after_work_on_it(driver):
    runtime = nm.device(driver.device).runtime

    def lend():
        """Memory as if it were somebody else's, and how much is in use."""
        x = tensor(1000, 1000)
        nm.eval(x)
        memory = x._node.view.storage.memory
        capsule = runtime.export_dlpack(memory, 0, (2, 3), (3, 1), nm.float32, 1, True, False)
        return runtime.import_dlpack(Producer(capsule))[0], runtime.memory_stats()["in_use"]

    taken, held = lend()
    del taken
    assert runtime.memory_stats()["in_use"] < held
    taken, held = lend()
    driver.cuEventQuery = lambda event: (600,)  # our work is not done
    del taken
    runtime.synchronize()
    assert runtime.memory_stats()["in_use"] == held
    driver.cuEventQuery = lambda event: (0,)
    runtime.capturing = True  # a graph, which must not wait for anything
    runtime.synchronize()
    assert runtime.memory_stats()["in_use"] == held
    runtime.capturing = False
    runtime.synchronize()
    assert runtime.memory_stats()["in_use"] < held
    taken, held = lend()
    holds, go = threading.Event(), threading.Event()

    def evaluates():
        with launch_lock.lock:
            holds.set()
            go.wait(10)

    other = threading.Thread(target=evaluates)
    other.start()
    holds.wait(10)
    del taken  # which may happen anywhere, and waits for nobody
    runtime.reclaim_memory()  # nor does who needs memory
    assert runtime.memory_stats()["in_use"] == held
    go.set()
    other.join()
    runtime.synchronize()
    assert runtime.memory_stats()["in_use"] < held


def test_no_copies_during_another_threads_capture(driver):
    runtime = nm.device(driver.device).runtime
    x = tensor(100)
    done = []

    def copies():
        done.append(nm.asarray(np.ones(5, np.float32), device=driver.device).numpy())
        runtime.synchronize()
        done.append(x.numpy())

    with launch_lock.lock:
        other = threading.Thread(target=copies)
        other.start()
        other.join(0.05)
        assert not done
    other.join(10)
    assert [len(a) for a in done] == [5, 100]


def test_concurrent_copies_have_their_own_staging(driver):
    """One waits for the device; another one gets what it asks for."""
    x, waits, go = tensor(100), threading.Event(), threading.Event()
    x.numpy()
    first = threading.current_thread()

    def wait(event):
        if threading.current_thread() is not first:
            waits.set()
            go.wait(10)
        return (0,)

    driver.cuEventSynchronize = wait
    other = threading.Thread(target=x.numpy)
    other.start()
    assert waits.wait(10)
    assert x.numpy().sum() == 100
    go.set()
    other.join()


def test_early_results_are_read_while_the_program_runs(driver):
    x = nm.asarray(np.ones((128, 130), np.float32)).requires_grad_()

    @nm.jit
    def step(scale):
        x.grad = None
        loss = (x * scale).sum()
        y = x * 3.0
        for _ in range(12):  # kernels that follow
            y = nm.cumsum(y @ y.T, axis=0) @ x
        loss.backward()
        with nm.no_grad():
            x.assign(x - 0.1 * x.grad)
        return loss, y

    def reads():
        return driver.calls["cuStreamWaitEvent"]

    scale = tensor()
    for _ in range(4):
        loss, _ = step(scale)
    before = reads()
    loss.item()
    assert reads() == before + 1  # for the event that tells when it is there
    assert driver.calls["cuEventRecordWithFlags"] >= 2
    runtime = nm.device(driver.device).runtime
    address = loss._node.view.storage.memory.address
    assert address in runtime.early_results
    # whoever writes there, or launches anything, comes later
    runtime.upload(loss._node.view.storage.memory, np.full((), 7.0, np.float32))
    before = reads()
    assert loss.item() == 7
    loss, _ = step(scale)
    nm.eval(scale + scale)
    loss.item()
    assert reads() == before


def long_program():
    """A jitted function of many kernels, whose loss is there before they have ended."""

    @nm.jit
    def step(x):
        y = x
        for _ in range(12):
            y = nm.cumsum(y @ x, axis=0)
        return x.sum(), y

    return step


def test_freed_launch_lists_leave_no_graphs_and_events(driver, fast_gc):
    runtime = nm.device(driver.device).runtime
    x = tensor(64, 64)

    def once():
        step = long_program()
        for _ in range(6):
            loss, _ = step(x)
            loss.item()
        runtime.last_launched = None  # kept to be named in errors
        del step, loss
        gc.collect()

    def counted():
        runtime.prepare([], 0)
        graphs = driver.calls["cuGraphInstantiate"] - driver.calls["cuGraphExecDestroy"]
        return driver.calls["cuEventCreate"], graphs, runtime.memory_stats()["in_use"]

    once()
    assert driver.calls["cuEventRecordWithFlags"] > 0
    assert driver.calls["cuGraphInstantiate"] > 0
    before = counted()
    assert before[1] == 0
    for _ in range(5):
        once()
    assert counted() == before


def test_vendor_programs_of_freed_plans_are_freed(driver, library):
    for n in range(1, 20):
        nm.eval(tensor(n, 16) @ tensor(16, 16))
    runtime = nm.device(driver.device).runtime
    alive = [weakref.ref(launch) for launch in made]
    made.clear()
    assert sum(launch() is not None for launch in alive) == 19
    runtime.last_launched = None
    clear_plans()
    gc.collect()
    assert sum(launch() is not None for launch in alive) == 0


def test_kernels_are_assembled_in_parallel_and_errors_raised(driver, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    runtime = nm.device(driver.device).runtime
    threads = set()
    machine_code = runtime.compiler.machine_code

    def watched(name, source):
        threads.add(threading.current_thread().name)
        return machine_code(name, source)

    monkeypatch.setattr(runtime.compiler, "machine_code", watched)
    x = tensor(64, 64)
    nm.eval(nm.cumsum(nm.sort(x, axis=0), axis=1), x.sum(), x @ x)
    assert threads
    assert threading.current_thread().name not in threads
    first = {r.key: r.cause for r in runtime.compile_log}
    assert set(first.values()) == {"compiled"}

    driver.cuLinkAddData = lambda *args: (218,)
    with pytest.raises(CompileError, match="the CUDA driver rejects kernel"):
        nm.eval(nm.cumsum(nm.argsort(x, axis=0), axis=1), x.prod())
    del driver.cuLinkAddData
    nm.eval(x.prod())


def test_kernels_with_registers_by_role_are_whole_programs(driver, monkeypatch, tmp_path):
    """Drivers ignore setmaxnreg in what they assemble for linking."""
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    loaded = []

    def load(image):
        loaded.append(bytes(image))
        return 0, 1

    driver.cuModuleLoadData = load
    q = nm.zeros((1, 500, 80), dtype="bfloat16")
    nm.eval(q)
    loaded.clear()
    for _ in range(2):  # the second time from disk
        nm.eval(nm.scaled_dot_product_attention(q, q, q))
        nm.device(driver.device).runtime.compiler._programs.clear()
        clear_plans()
    assert len(loaded) == 2
    for image in loaded:
        assert b"setmaxnreg.inc.sync.aligned.u32 216" in image
        assert image.endswith(b"\0")


class Gemm:
    """The cuBLAS functions that are used, on the host's memory."""

    def __init__(self):
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int,
            *[ctypes.c_void_p] + [ctypes.c_int] * 5,
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
        )

        def gemm(handle, ta, tb, m, n, k, one, a, lda, b, ldb, zero, c, ldc):
            f = ctypes.c_float
            read = lambda at, size: np.ctypeslib.as_array((f * size).from_address(at))
            left = read(a, lda * k).reshape(k, lda)[:, :m]
            right = read(b, (k - 1) * ldb + 1)[::ldb] if tb else read(b, k)
            assert (handle, ta, n, ldc) == (5, 0, 1, m)
            read(c, m)[:] = right @ left
            return 0

        self.cublasSgemm_v2 = kind(gemm)
        self.cublasSetStream_v2 = self.cublasSetWorkspace_v2 = lambda *words: 0

    def cublasCreate_v2(self, handle):
        handle._obj.value = 5
        return 0


def test_gemv_by_cublas(driver, monkeypatch):
    library = Gemm()
    monkeypatch.setattr(cublas, "library", lambda: library)
    rng = np.random.default_rng(0)
    a, m, v, w = (rng.standard_normal(s).astype("f") for s in ((1, 16), (16, 8), (16,), (32,)))
    cases = {
        "rows": (lambda a, m: a @ m, (a, m)),
        "vector": (lambda v, m: v @ m, (v, m)),
        "columns": (lambda m, v: m.T @ v, (m, v)),
        "part": (lambda m, v: m[:, 4:].T @ v, (m, v)),
        "every other": (lambda m, w: m.T @ w[::2], (m, w)),
        "every other, a row": (lambda w, m: w[None, ::2] @ m, (w, m)),
        "not aligned": (lambda w, m: w[3:19] @ m[:, 1:], (w, m)),
    }
    for name, (f, arrays) in cases.items():
        xs = [nm.asarray(x) for x in arrays]
        assert [k.name for k in nm.explain(f, *xs).kernels] == ["cublas"], name
        for _ in range(3):
            np.testing.assert_allclose(f(*xs).numpy(), f(*arrays), rtol=1e-5, atol=1e-6)
    x = nm.asarray(m)
    for f in (lambda: x @ nm.asarray(v[:8]), lambda: nm.asarray(a).astype("float16") @ x):
        assert "cublas" not in [k.name for k in nm.explain(f).kernels]
