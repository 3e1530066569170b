"""The op table: a row for every public function."""

from ops import elementwise, transcendental

ROWS = [row for module in (elementwise, transcendental) for row in module.ROWS]
