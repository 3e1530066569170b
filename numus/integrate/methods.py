"""The methods for initial value problems, by name."""

from __future__ import annotations

from numus.integrate.bdf import Bdf
from numus.integrate.radau import Radau
from numus.integrate.runge_kutta import DOP853, RK23, RK45
from numus.integrate.stepping import Method

METHODS: dict[str, Method] = {
    "RK23": RK23, "RK45": RK45, "DOP853": DOP853, "Radau": Radau(), "BDF": Bdf(),
}  # fmt: skip
