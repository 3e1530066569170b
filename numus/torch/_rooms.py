"""Modules that PyTorch keeps its classes in, by their paths: `from torch.optim.adam import Adam`.

Each is an alias of the package that offers the same names; it takes no file, and is filled when it
is asked for a name.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_ALIASES = {
    "nn": "modules",
    "nn.modules": """activation adaptive batchnorm container conv dropout embedding flatten fold
        instancenorm linear loss module normalization padding pooling rnn sparse transformer
        upsampling utils""",
    "optim": """adadelta adagrad adam adamax adamw asgd lbfgs nadam optimizer radam rmsprop rprop
        sgd sparse_adam""",
    "utils.data": "dataloader dataset sampler",
    "autograd": "function variable",
    "nn.utils": "clip_grad convert_parameters parametrizations parametrize",
    "distributions": """bernoulli beta binomial categorical cauchy chi2 constraint_registry
        constraints continuous_bernoulli dirichlet distribution exp_family exponential
        fishersnedecor gamma geometric gumbel half_cauchy half_normal independent inverse_gamma kl
        kumaraswamy laplace lkj_cholesky log_normal logistic_normal lowrank_multivariate_normal
        mixture_same_family multinomial multivariate_normal negative_binomial normal
        one_hot_categorical pareto poisson relaxed_bernoulli relaxed_categorical studentT
        transformed_distribution transforms uniform von_mises weibull wishart""",
}


def _repeated(count: int) -> Any:
    """A number for each axis, as layers take it."""
    return lambda x: tuple(x) if hasattr(x, "__iter__") else (x,) * count


_PRIVATE = {"_single": _repeated(1), "_pair": _repeated(2), "_triple": _repeated(3)}
# Bases of layers, for `isinstance`: PyTorch's name, and where the engine has the same
_BASES = {"_BatchNorm": "norm._BatchNorm", "_InstanceNorm": "norm._InstanceNorm"}
_BASES |= {"_NormBase": "norm._Running", "_ConvNd": "conv._Windowed"}


class Alias(ModuleType):
    """A module whose names are those of other ones, the first that has them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PRIVATE:
            return _PRIVATE[name]
        if name in _BASES:
            family, _, base = _BASES[name].partition(".")
            return getattr(importlib.import_module(f"numus.nn.layers.{family}"), base)
        parent, _, own = self.__name__.rpartition(".")
        room = importlib.import_module(parent)
        if hasattr(room, name):
            return getattr(room, name)
        inner = getattr(room, own, None)  # transforms, constraints: modules of the engine, too
        if inner is None or inner is self:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(inner, name)


def install() -> None:
    """Let the modules be found by `import`."""
    for parent, names in _ALIASES.items():
        for path in (f"numus.torch.{parent}.{name}" for name in names.split()):
            sys.modules.setdefault(path, Alias(path))
