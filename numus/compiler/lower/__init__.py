"""Lowering of fusion groups to kernel IR."""

# Index rules register when they are imported.
from numus.compiler.lower import index_rules as index_rules
