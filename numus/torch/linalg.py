"""`torch.linalg`: linear algebra."""

from numus import linalg as _engine
from numus.torch._modules import reflected

__getattr__ = reflected(__name__, _engine, {})


def __dir__() -> list[str]:
    return [n for n in dir(_engine) if n[0] != "_"]
