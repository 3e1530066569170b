"""Schedules of factorisations, in the order in which they are asked."""

from __future__ import annotations

from numus.compiler.lower.factor.blocked import lower_blocked, runs_in_blocks
from numus.compiler.lower.factor.blocks import lower_block, lower_lanes, runs_in_lanes
from numus.compiler.lower.factor.interleaved import is_interleaved, lower_interleaved
from numus.compiler.lower.factor.lu_panels import lower_by_panels, runs_by_panels
from numus.compiler.lower.factor.panels import fits_panel, lower_panel
from numus.compiler.lower.factor.registers import fits_registers, lower_registers
from numus.compiler.lower.factor.rotations import fits_warp, lower_warps
from numus.compiler.lower.factor.spectra import lower_spectra, runs_as_spectrum
from numus.compiler.lower.factor.tiles import lower_tiles, runs_in_tiles
from numus.compiler.lower.factor.vendor import lower_routine
from numus.compiler.lower.schedule import Candidate, Problem, family

lower_factor = family(
    Problem,
    Candidate("a library's routine", lower_routine, lambda p: p.val.op == "lapack"),
    Candidate("in registers", lower_registers, fits_registers),
    Candidate("rows in registers of a warp", lower_warps, fits_warp),
    Candidate("a tile per block, in one kernel", lower_tiles, runs_in_tiles),
    Candidate("rows in registers of a cluster", lower_panel, fits_panel),
    Candidate("panels, and tiles right of them", lower_by_panels, runs_by_panels),
    Candidate("in blocks, in place", lower_blocked, runs_in_blocks),
    Candidate("in blocks, then ranges of vectors", lower_spectra, runs_as_spectrum),
    Candidate("a matrix per lane, from operand to result", lower_interleaved, is_interleaved),
    Candidate("a matrix per lane", lower_lanes, runs_in_lanes),
    Candidate("a matrix per block", lower_block),
)
