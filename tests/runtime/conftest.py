"""A CUDA device on the fake driver."""

import fake_cuda_driver
import pytest

import numus as nm
from numus.compiler.plan import clear_plans
from numus.dispatch.call_cache import eager_calls
from numus.runtime.cuda import cublas, cublaslt, cusolver


@pytest.fixture
def driver(monkeypatch):
    fake, fake.device = fake_cuda_driver.install(monkeypatch, memory=64 << 20)
    # an installed library would take host addresses for device ones
    for found in (cublas, cublaslt, cusolver):
        monkeypatch.setattr(found, "library", lambda: None)
    eager_calls.clear()
    before = nm.default_device()
    nm.set_default_device(fake.device)
    yield fake
    nm.set_default_device(before)
    eager_calls.clear()
    clear_plans()
