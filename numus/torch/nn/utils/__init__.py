"""`torch.nn.utils`: clipping of gradients, parameters as one vector, parametrisations."""

from numus.nn import utils as _engine
from numus.torch._modules import reflected
from numus.torch.nn.utils import rnn

__all__ = ["rnn"]

__getattr__ = reflected(__name__, _engine, {"clip_grad_norm": _engine.clip_grad_norm_})


def __dir__() -> list[str]:
    return [n for n in dir(_engine) if n[0] != "_"]
