"""`torch.nn.utils.rnn`: sequences of several lengths."""

from numus.nn.utils import rnn as _engine
from numus.torch._modules import reflected

__getattr__ = reflected(__name__, _engine, {})


def __dir__() -> list[str]:
    return [n for n in dir(_engine) if n[0] != "_"]
