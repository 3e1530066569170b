"""From constraints to maps of unconstrained numbers onto them: `biject_to` and `transform_to`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus.distributions import constraints
from numus.distributions import transforms as tf
from numus.distributions.constraints import Constraint
from numus.distributions.transforms.base import Transform

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Maps onto constraints: by the constraint itself, else by its class."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: dict[Any, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Add a map onto a constraint or a class of them; without `factory`, a decorator."""
        if factory is None:
            return lambda given: self.register(constraint, given)
        self._found[constraint] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        """The map onto a constraint."""
        factory = self._found.get(constraint) or self._found.get(type(constraint))
        if factory is None:
            raise NotImplementedError(
                f"{self.name}: there is no map onto the set: {constraint}; add one with "
                f"nm.distributions.{self.name}.register"
            )
        return factory(constraint)


biject_to = ConstraintRegistry("biject_to")
transform_to = ConstraintRegistry("transform_to")


def _both(constraint: Any, factory: Factory) -> None:
    biject_to.register(constraint, factory)
    transform_to.register(constraint, factory)


def _onto_interval(c: Any) -> Transform:
    low, high = c.lower_bound, c.upper_bound
    if high is None:
        return tf.ComposeTransform([tf.ExpTransform(), tf.AffineTransform(low, 1.0)])
    if low is None:
        return tf.ComposeTransform([tf.ExpTransform(), tf.AffineTransform(high, -1.0)])
    return tf.ComposeTransform([tf.SigmoidTransform(), tf.AffineTransform(low, high - low)])


def _parts(registry: ConstraintRegistry) -> Factory:
    def factory(c: Any) -> Transform:
        maps = [registry(part) for part in c.constraints]
        if c.lengths is None:
            return tf.StackTransform(maps, c.dim)
        return tf.CatTransform(maps, c.dim, c.lengths)

    return factory


def _independent(registry: ConstraintRegistry) -> Factory:
    return lambda c: tf.IndependentTransform(
        registry(c.base_constraint), c.reinterpreted_batch_ndims
    )


_both(constraints.real, lambda _: tf.identity_transform)
_both(constraints.positive, lambda _: tf.ExpTransform())
_both(constraints.nonnegative, lambda _: tf.ExpTransform())
_both(constraints.unit_interval, lambda _: tf.SigmoidTransform())
_both(constraints._Interval, _onto_interval)
_both(constraints.lower_cholesky, lambda _: tf.LowerCholeskyTransform())
_both(constraints.positive_definite, lambda _: tf.PositiveDefiniteTransform())
_both(constraints.positive_semidefinite, lambda _: tf.PositiveDefiniteTransform())
_both(constraints.corr_cholesky, lambda _: tf.CorrCholeskyTransform())
biject_to.register(constraints.simplex, lambda _: tf.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda _: tf.SoftmaxTransform())
for _registry in (biject_to, transform_to):
    _registry.register(constraints.independent, _independent(_registry))
    _registry.register(constraints._Parts, _parts(_registry))
