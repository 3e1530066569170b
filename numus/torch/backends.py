"""`torch.backends`: switches that PyTorch's programs set; here the compiler chooses kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numus as nm


def _here(kind: str) -> bool:
    return any(d.kind == kind for d in nm.devices())


cudnn = SimpleNamespace(
    benchmark=False, deterministic=True, enabled=False, allow_tf32=False, is_available=lambda: False
)
cuda = SimpleNamespace(
    matmul=SimpleNamespace(allow_tf32=False), is_built=lambda: True, enable_flash_sdp=lambda _: None
)
mps = SimpleNamespace(is_available=lambda: False, is_built=lambda: False)
webgpu = SimpleNamespace(is_available=lambda: _here("webgpu"))
