"""Products of ggml's CPU backend, by the C interface that llama-cpp-python brings."""

from __future__ import annotations

import ctypes as c
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPES = {"q4_0": 2, "q8_0": 8, "q4_k": 12, "q6_k": 14}
_POINTERS = (
    *("ggml_backend_cpu_init", "ggml_backend_cpu_reg", "ggml_backend_cpu_buffer_type"),
    *("ggml_backend_reg_dev_get", "ggml_backend_reg_get_proc_address", "ggml_init"),
    *("ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph", "ggml_get_data"),
    "ggml_backend_alloc_ctx_tensors_from_buft",
)


class _Memory(c.Structure):
    _fields_ = (("size", c.c_size_t), ("buffer", c.c_void_p), ("no_alloc", c.c_bool))


def _pointers(*values: Any) -> list[Any]:
    """Addresses as C passes them; other arguments as they are."""
    return [c.c_void_p(v) if isinstance(v, int) else v for v in values]


class Ggml:
    """The library, and a backend of some threads."""

    def __init__(self, threads: int) -> None:
        package = importlib.util.find_spec("llama_cpp")
        if package is None or package.origin is None:
            raise ImportError("ggml comes with llama-cpp-python, which is not installed")
        folder = Path(package.origin).parent / "lib"
        names = ("base", "cpu")
        self.base, self.cpu = (
            c.CDLL(str(folder / f"libggml-{n}.so"), c.RTLD_GLOBAL) for n in names
        )
        for name in _POINTERS:
            getattr(self.cpu, name).restype = c.c_void_p
        self.cpu.ggml_init.argtypes = [_Memory]
        self.backend = self.call("ggml_backend_cpu_init")
        self.cpu.ggml_backend_cpu_set_n_threads(*_pointers(self.backend), threads)

    def call(self, name: str, *values: Any) -> Any:
        return getattr(self.cpu, name)(*_pointers(*values))

    def buffers(self, repacked: bool) -> list[int]:
        """Kinds of memory for weights, the preferred one first."""
        plain = self.call("ggml_backend_cpu_buffer_type")
        if not repacked:
            return [plain]
        registry = self.call("ggml_backend_cpu_reg")
        device = self.call("ggml_backend_reg_dev_get", registry, c.c_size_t(0))
        name = b"ggml_backend_dev_get_extra_bufts"
        found = self.call("ggml_backend_reg_get_proc_address", registry, name)
        kinds = c.CFUNCTYPE(c.POINTER(c.c_void_p), c.c_void_p)(found)(device)
        extra = []
        while kinds[len(extra)]:
            extra.append(int(kinds[len(extra)]))
        return [*extra, plain]


class Product:
    """x @ w.T in blocks of a kind; `repacked`: in the order that llama.cpp gives weights it loads.

    `fits` is false where ggml has no such order, and takes the blocks as they are.
    """

    def __init__(
        self,
        ggml: Ggml,
        kind: str,
        blocks: NDArray[np.uint8],
        x: NDArray[np.float32],
        repacked: bool,
    ) -> None:
        self.ggml, self.shape = ggml, (x.shape[0], blocks.shape[0])
        made = [ggml.cpu.ggml_init(_Memory(1 << 20, None, True)) for _ in range(2)]
        rows, k = blocks.shape[0], x.shape[1]
        sizes = (c.c_int64(k), c.c_int64(rows))
        weight = ggml.call("ggml_new_tensor_2d", made[0], c.c_int(TYPES[kind]), *sizes)
        for buffer in ggml.buffers(repacked):
            if ggml.call("ggml_backend_alloc_ctx_tensors_from_buft", made[0], buffer):
                break
        sizes = (c.c_int64(k), c.c_int64(x.shape[0]))
        self.x = ggml.call("ggml_new_tensor_2d", made[1], c.c_int(0), *sizes)
        self.out = ggml.call("ggml_mul_mat", made[1], weight, self.x)
        self.graph = ggml.call("ggml_new_graph", made[1])
        ggml.call("ggml_build_forward_expand", self.graph, self.out)
        plain = ggml.call("ggml_backend_cpu_buffer_type")
        ggml.call("ggml_backend_alloc_ctx_tensors_from_buft", made[1], plain)
        for tensor, values in ((weight, blocks), (self.x, x)):
            values = np.ascontiguousarray(values)
            size = c.c_size_t(values.nbytes)
            ggml.call("ggml_backend_tensor_set", tensor, values.ctypes.data, c.c_size_t(0), size)

    def __call__(self) -> None:
        if self.ggml.call("ggml_backend_graph_compute", self.ggml.backend, self.graph):
            raise RuntimeError("ggml_backend_graph_compute failed")

    def numpy(self) -> NDArray[np.float32]:
        count = self.shape[0] * self.shape[1]
        data = self.ggml.call("ggml_get_data", self.out)
        values = np.ctypeslib.as_array(c.cast(data, c.POINTER(c.c_float)), (count,))
        return values.reshape(self.shape).copy()
