"""One GPU as WebGPU gives it: device, queue, and what it can do."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus.codegen.wgsl.target import WgslTarget
from numus.errors import DeviceError
from numus.runtime.webgpu import probe
from numus.runtime.webgpu.adapters import adapters, describe, is_software
from numus.target import Target

# Asked for where the adapter has them.
_FEATURES = ("shader-f64", "shader-int64", "shader-f16", "subgroup", "timestamp-query")
# Limits that are raised to what the adapter has.
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-bindings-per-bind-group",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension",
    "max-uniform-buffer-binding-size",
)

FLUSHES = "flushes-subnormals"  # a fact: float32 below the normal range may become zero


class GpuContext:
    """A device that has been started. It is lost when the driver says so, and then never used
    again: the next use starts another.
    """

    _started: dict[int, GpuContext] = {}  # noqa: RUF012
    _lock = threading.RLock()
    _told: set[str] = set()  # noqa: RUF012

    @classmethod
    def get(cls, index: int = 0) -> GpuContext | None:
        """The context of the adapter with this number, started on first use; None where there is
        no such adapter. Never raises on missing hardware.
        """
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
        self.lost = ""  # why, once it is
        self.last = 0  # the number of the last submission
        self.done = 0  # that of the last one known to have finished
        features = [f for f in _FEATURES if f in self.adapter.features]
        limits = {k: v for k, v in self.adapter.limits.items() if k in _LIMITS}
        # 2 GiB and above is more than some drivers mean
        self.device = self.adapter.request_device_sync(
            label="numus", required_features=features, required_limits=limits
        )
        self.queue = self.device.queue
        self.features = frozenset(features)
        self.limits: dict[str, int] = dict(self.device.limits)
        self.shader_target = self._shader_target()
        self.target = self._target()
        if is_software(self.adapter) and "software" not in self._told:
            self._told.add("software")
            warnings.warn(
                f"{self.name} is {describe(self.adapter)}, which computes on the CPU: right, but "
                "slower than device 'cpu'",
                RuntimeWarning,
                stacklevel=2,
            )

    def _shader_target(self) -> WgslTarget:
        limits = self.limits
        software = is_software(self.adapter)
        given = WgslTarget(
            block_size=min(64 if software else 256, self._most_threads()),
            shared_bytes=limits["max-compute-workgroup-storage-size"],
            max_workgroups=limits["max-compute-workgroups-per-dimension"],
            max_buffers=limits["max-storage-buffers-per-shader-stage"],
            max_binding_bytes=limits["max-storage-buffer-binding-size"] // 256 * 256,
            i64="shader-int64" in self.features,
            f64="shader-f64" in self.features and "shader-int64" in self.features,
            f16="shader-f16" in self.features,
            subgroups="subgroup" in self.features,
        )
        return probe.measured(self, given)

    def _most_threads(self) -> int:
        names = "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x"
        return min(self.limits[name] for name in names)

    def _target(self) -> Target:
        shader = self.shader_target
        missing = set()
        if not shader.i64:
            missing |= {"int64", "uint64"}
        if not shader.f64:
            missing |= {"float64", "complex128"}
        software = is_software(self.adapter)
        return Target(
            name="webgpu",
            description=describe(self.adapter),
            dtypes=frozenset(d.name for d in dt.ALL) - missing,
            vector_bytes=4 * shader.block_size,
            vector_registers=64,
            l1_bytes=shader.shared_bytes,
            l2_bytes=4 << 20,
            num_cores=2 if software else 128,  # WebGPU does not tell
            language="wgsl",
            packed_storage=True,
            features=self.features | ({FLUSHES} if not shader.subnormals else set()),
            block_size=shader.block_size,
            shared_bytes=shader.shared_bytes,
            static_shared=True,
            max_block_size=0 if software else self._most_threads(),
        )

    # -- work -------------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Any]) -> int:
        """Hand commands to the GPU; the number by which `wait` knows them."""
        self.queue.submit(commands)
        self.last += 1
        return self.last

    def wait(self, number: int | None = None) -> None:
        """Wait until a submission, or all of them, has been worked off."""
        if number is not None and number <= self.done:
            return
        upto = self.last
        self.device._poll_wait()
        self.done = max(self.done, upto)

    def check(self, error: Exception) -> Exception:
        """What to raise for an error of the driver: one that says that the device is gone, if it
        is, and that the next use starts afresh."""
        text = str(error)
        if "lost" in text.lower() or "destroyed" in text.lower():
            self.lost = text or "the driver gave no reason"
            return lost(self)
        return error


def lost(context: GpuContext) -> DeviceError:
    """The error for what lived on a device that is gone."""
    reason = context.lost.strip().splitlines()[-1].strip() if context.lost else "unknown"
    return DeviceError(
        f"{context.name} ({describe(context.adapter)}) was lost ({reason}): what was on it is gone."
        " Move tensors there again from the host; the device starts afresh."
    )
