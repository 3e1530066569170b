"""GpuContext: one started WebGPU device with its queue, limits and targets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus.codegen.wgsl.target import WgslTarget
from numus.errors import DeviceError
from numus.runtime.locks import creation
from numus.runtime.webgpu import probe
from numus.runtime.webgpu.adapters import adapters, describe, is_software
from numus.target import Target

# Requested where the adapter has them.
_FEATURES = ("shader-f64", "shader-int64", "shader-f16", "subgroup")
# Raised to the adapter's own.
_LIMITS = (
    *("max-buffer-size", "max-storage-buffer-binding-size", "max-uniform-buffer-binding-size"),
    *("max-storage-buffers-per-shader-stage", "max-bindings-per-bind-group"),
    *("max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup"),
    *("max-compute-workgroup-size-x", "max-compute-workgroups-per-dimension"),
)

FLUSHES_SUBNORMALS = "flushes-subnormals"  # a feature: float32 results may be flushed to zero


@dataclass(frozen=True)
class AdapterTuning:
    """Sizes that WebGPU does not tell. A software renderer emulates threads by SIMD: with a GPU's
    sizes, reductions are 1.6 to 8 times slower there, matmul 2.4 and attention 3 times (lavapipe on
    a 2-core x86-64 machine)."""

    block_size: int = 256
    num_cores: int = 128
    large_blocks: bool = True  # up to the adapter's limit, where a schedule asks for them


_GPU, _SOFTWARE = AdapterTuning(), AdapterTuning(64, 2, large_blocks=False)


class GpuContext:
    """A started device. Once the driver reports it lost, the next use starts another."""

    _started: dict[int, GpuContext] = {}  # noqa: RUF012
    _lock = creation
    _warned = False

    @classmethod
    def get(cls, index: int = 0) -> GpuContext | None:
        """The context of an adapter, started on first use; None where there is no such adapter."""
        with cls._lock:
            found = cls._started.get(index)
            if found is None or found.lost:
                if index >= len(adapters()):
                    return None
                found = cls._started[index] = cls(index)
            return found

    def __init__(self, index: int) -> None:
        import wgpu

        self.wgpu = wgpu
        self.index = index
        self.name = f"webgpu:{index}" if index else "webgpu"
        self.adapter = adapters()[index]
        self.tuning = _SOFTWARE if is_software(self.adapter) else _GPU
        self.lost = ""  # the reason, once it is
        features = [f for f in _FEATURES if f in self.adapter.features]
        limits = {k: v for k, v in self.adapter.limits.items() if k in _LIMITS}
        self.device = self.adapter.request_device_sync(
            label="numus", required_features=features, required_limits=limits
        )
        self.queue = self.device.queue
        self.features = frozenset(features)
        self.limits: dict[str, int] = dict(self.device.limits)
        self.shader_target = self._shader_target()
        self.target = self._target()
        if is_software(self.adapter) and not GpuContext._warned:
            GpuContext._warned = True
            warnings.warn(
                f"{self.name} is {describe(self.adapter)}, which computes on the CPU: right, but "
                "slower than device 'cpu'",
                RuntimeWarning,
                stacklevel=2,
            )

    def _shader_target(self) -> WgslTarget:
        limits = self.limits
        target = WgslTarget(
            block_size=min(self.tuning.block_size, self._max_threads()),
            shared_bytes=limits["max-compute-workgroup-storage-size"],
            max_workgroups=limits["max-compute-workgroups-per-dimension"],
            max_buffers=limits["max-storage-buffers-per-shader-stage"],
            max_binding_bytes=limits["max-storage-buffer-binding-size"] // 256 * 256,
            i64="shader-int64" in self.features,
            f64="shader-f64" in self.features and "shader-int64" in self.features,
            f16="shader-f16" in self.features,
            subgroups="subgroup" in self.features,
        )
        return probe.measured(self.device, self.queue, target)

    def _max_threads(self) -> int:
        names = "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x"
        return min(self.limits[name] for name in names)

    def _target(self) -> Target:
        shader = self.shader_target
        missing = set()
        if not shader.i64:
            missing |= {"int64", "uint64"}
        if not shader.f64:
            missing |= {"float64", "complex128"}
        return Target(
            name="webgpu",
            description=describe(self.adapter),
            dtypes=frozenset(d.name for d in dt.ALL) - missing,
            vector_bytes=4 * shader.block_size,
            vector_registers=64,
            l1_bytes=shader.shared_bytes,
            l2_bytes=4 << 20,
            num_cores=self.tuning.num_cores,
            language="wgsl",
            packed_storage=True,
            features=self.features | ({FLUSHES_SUBNORMALS} if not shader.subnormals else set()),
            block_size=shader.block_size,
            shared_bytes=shader.shared_bytes,
            static_shared=True,
            max_block_size=self._max_threads() if self.tuning.large_blocks else 0,
        )

    def layouts(self, bindings: Iterable[tuple[int, str]]) -> tuple[Any, Any]:
        """The bind group layout and pipeline layout of bindings with their types."""
        stage = self.wgpu.ShaderStage.COMPUTE
        entries = [{"binding": i, "visibility": stage, "buffer": {"type": t}} for i, t in bindings]
        layout = self.device.create_bind_group_layout(entries=entries)
        return layout, self.device.create_pipeline_layout(bind_group_layouts=[layout])

    def wait(self) -> None:
        """Wait for all submitted work."""
        self.device._poll_wait()

    def raise_if_lost(self, error: Exception) -> None:
        """Raise `lost_error` where a driver's error comes from a lost device."""
        text = str(error)
        if "lost" in text.lower() or "destroyed" in text.lower():
            self.lost = text
            raise lost_error(self) from error


def lost_error(context: GpuContext) -> DeviceError:
    reason = context.lost.strip().splitlines()[-1].strip() if context.lost else "unknown"
    return DeviceError(
        f"{context.name} ({describe(context.adapter)}) was lost ({reason}), with all tensors on it."
        " Move them there again from the host; the device is restarted."
    )
