"""Products with operands of few bits: packed codes, and floats with scales of blocks."""
