"""GGUF's blocks as products read them: words of codes, and the scales and offsets of groups.

A row is a sequence of blocks of bytes. Its *low* words hold codes in fields of 2, 4 or 8 bits, one
or two high bits lie elsewhere in the block; masked and joined, each field is a word of four codes
for four consecutive values, as unsigned bytes. A group of values shares a scale: a value is
scale * code - offset. Scales are decoded once for a row, a block in each lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus.ir import Expr, const

Load = Callable[[Expr], Expr]  # the word at a byte of the row
Scale = tuple[Expr, Expr]  # of a group: its scale, and its offset in steps; float32

LOW_BITS = {1: 0xFF, 2: 0x0F, 4: 0x03}  # mask of a code, by the fields of a byte
BYTES = 0x01010101
IQ4_CODES = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)  # + 128


@dataclass(frozen=True)
class BlockLayout:
    """Where things lie in a block, in bytes.

    Values of a block go field by field through `run` low words, and on to the next run. `span` low
    words share a scale; `joined`: those of all fields too.
    """

    kind: str
    values: int
    size: int
    fields: int
    low: int  # first byte of the low words
    run: int
    span: int
    zero: int = 0  # code of zero, where there is no minimum
    high: int = -1  # first byte of the high bits, if there are any
    high_bits: int = 0
    joined: bool = False

    @property
    def words(self) -> int:
        """Low words of a block."""
        return self.values // (4 * self.fields)

    @property
    def spans(self) -> int:
        return self.words // self.span

    @property
    def groups(self) -> int:
        """Of a block, in the order of fields and then of low words, as scales are stored."""
        return self.spans * (1 if self.joined else self.fields)

    @property
    def small(self) -> bool:
        """Codes are below 128."""
        return self.kind != "iq4_nl" and 8 // self.fields + self.high_bits < 8

    @property
    def largest(self) -> int:
        """Code."""
        return (1 << (8 // self.fields + self.high_bits)) - 1 if self.small else 255

    @property
    def group_words(self) -> int:
        """Words of codes that share a scale."""
        return self.span * (self.fields if self.joined else 1)

    def codes(self, load: Load, w: Expr) -> list[Expr]:
        """The words of codes of a low word, field by field; `w` counts along the row."""
        block = w // self.words * self.size
        return self.block_codes(lambda byte: load(block + byte), w % self.words)

    def block_codes(self, load: Load, at: Expr) -> list[Expr]:
        """As `codes`, of a block; `load` counts bytes, and `at` words, from its begin."""
        high = load(self._high_byte(at) + self.high) if self.high_bits else None
        return self._fields(
            load(at * 4 + self.low), lambda f: None if high is None else self._high(high, at, f)
        )

    def value_codes(self, byte: Load, word: Load, start: int, lane: Expr) -> list[Expr]:
        """The codes of single values, field by field: value `lane` of the low words from `start` on
        up to the next multiple of 4. `byte` and `word` count bytes from the block's begin."""
        at, high = const(start), self._high_byte(const(start)) + self.high

        def own_high(f: int) -> Expr | None:
            if not self.high_bits:
                return None
            if self.values == 32:  # a bit for each value
                bit = (lane + (4 * start + 16 * f)).cast(dt.uint32)
                return ((word(const(self.high)) >> bit) & 1) << 4
            return self._high(byte(high + lane), at, f)

        found = self._fields(byte(lane + (4 * start + self.low)), own_high)
        return found if self.small else [code & 255 for code in found]

    def _fields(self, low: Expr, high: Callable[[int], Expr | None]) -> list[Expr]:
        """Codes in the fields of a low word, or of its lowest byte."""
        out = []
        for f in range(self.fields):
            step = 8 // self.fields * f
            code = low >> step if step else low
            code = code & LOW_BITS[self.fields] * BYTES if self.fields > 1 else code
            own = high(f)
            if own is not None:
                code = code | own
            if self.kind == "q8_0":  # signed bytes
                code = code ^ (128 * BYTES)
            out.append(_lookup(code, IQ4_CODES) if self.kind == "iq4_nl" else code)
        return out

    def _high_byte(self, at: Expr) -> Expr:
        if self.values == 32:  # one word for all
            return at - at
        if self.kind == "q6_k":
            return at // 16 * 32 + at % 8 * 4
        return at % 8 * 4

    def _high(self, word: Expr, at: Expr, f: int) -> Expr:
        """The high bits of four codes, above their low bits."""
        if self.values == 32:  # four consecutive bits, which go to a byte each
            four = (word >> (at * 4 + 16 * f).cast(dt.uint32)) & 15
            spread = four | (four << 7) | (four << 14) | (four << 21)
            return (spread & BYTES) << 4
        if self.kind == "q6_k":
            shift = at % 16 // 8 * 2 + 4 * f
        elif self.kind == "q5_k":
            shift = at // 8 * 2 + f
        else:
            shift = at // 8 * 4 + f
        bits = word >> shift.cast(dt.uint32)
        return (bits & ((1 << self.high_bits) - 1) * BYTES) << (8 // self.fields)

    def scales(self, load: Load, block: Expr) -> tuple[list[Scale], Expr | float]:
        """Of the groups of a block, and the step of their offsets."""
        at = block * self.size
        found, step = _SCALES[self.kind](lambda byte: load(at + byte))
        own = [found[self._group(i)] for i in range(self.groups)]
        return own, float(self.zero) if self.zero else step

    def _group(self, i: int) -> int:
        """The number that a group has in the block."""
        f, q = divmod(i, self.spans)
        per_run = self.run // self.span
        return (
            0 if self.joined else q // per_run * (self.fields * per_run) + f * per_run + q % per_run
        )


def _lookup(code: Expr, table: tuple[int, ...]) -> Expr:
    """The entries of a table of 16 bytes for the four codes of a word: a tree of selections, one
    level for each bit, of all bytes at once."""
    level: list[Any] = [entry * BYTES for entry in table]
    for bit in range(4):
        one = (code >> bit) & BYTES if bit else code & BYTES
        mask = (one << 8) - one  # 255 where the bit is set; what goes beyond a byte cancels
        level = [_select(mask, a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    found: Expr = level[0]
    return found


def _select(mask: Expr, no: Any, yes: Any) -> Any:
    return (mask & (no ^ yes)) ^ no


def _half(word: Expr, upper: bool = False) -> Expr:
    bits = word >> 16 if upper else word & 0xFFFF
    return bits.cast(dt.uint16).bitcast(dt.float16).cast(dt.float32)


def _byte(word: Expr, i: int) -> Expr:
    return (word >> (8 * i)) & 255 if i else word & 255


Read = Callable[[int], Expr]  # the word at a byte of the block
Scales = tuple[list[Scale], Expr | float]


def _one(load: Read) -> Scales:
    scale = _half(load(0))
    return [(scale, scale)], 1.0


def _one_affine(load: Read) -> Scales:
    word = load(0)
    return [(_half(word), _half(word, upper=True))], -1.0


def _q2_k(load: Read) -> Scales:
    header = load(80)
    step, low = _half(header), _half(header, upper=True)
    found = []
    for word in (load(0), load(4), load(8), load(12)):
        for i in range(4):
            byte = _byte(word, i)
            found.append((step * (byte & 15).cast(dt.float32), (byte >> 4).cast(dt.float32)))
    return found, low


def _q3_k(load: Read) -> Scales:
    step = _half(load(106), upper=True)
    low, high = (load(96), load(100)), load(104)
    found = []
    for g in range(16):
        four = (low[g % 8 // 4] >> (8 * (g % 4) + 4 * (g // 8))) & 15
        two = (high >> (8 * (g % 4) + 2 * (g // 4))) & 3
        scale = step * ((four | (two << 4)).cast(dt.float32) - 32.0)
        found.append((scale, scale))
    return found, 1.0


def _q4_k(load: Read) -> Scales:
    header, low, middle, high = (load(i) for i in (0, 4, 8, 12))
    step, least = _half(header), _half(header, upper=True)
    found = []
    for g in range(8):
        if g < 4:
            scale, minimum = ((w >> (8 * g)) & 63 for w in (low, middle))
        else:
            i = 8 * (g - 4)
            scale = ((high >> i) & 15) | ((low >> (i + 2)) & 48)
            minimum = ((high >> (i + 4)) & 15) | ((middle >> (i + 2)) & 48)
        found.append((step * scale.cast(dt.float32), minimum.cast(dt.float32)))
    return found, least


def _q6_k(load: Read) -> Scales:
    step = _half(load(206), upper=True)
    found = []
    for word in (load(192), load(196), load(200), load(204)):
        for i in range(4):
            byte = (word << (24 - 8 * i)).bitcast(dt.int32) >> 24
            scale = step * byte.cast(dt.float32)
            found.append((scale, scale))
    return found, 1.0


_SCALES: dict[str, Callable[[Read], Scales]] = {
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl"), _one),
    **dict.fromkeys(("q4_1", "q5_1"), _one_affine),
    **{"q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q4_k, "q6_k": _q6_k},
}

LAYOUTS = {
    layout.kind: layout
    for layout in (
        BlockLayout("q4_0", 32, 18, 2, 2, 4, 4, zero=8, joined=True),
        BlockLayout("q4_1", 32, 20, 2, 4, 4, 4, joined=True),
        BlockLayout("q5_0", 32, 22, 2, 6, 4, 4, zero=16, high=2, high_bits=1, joined=True),
        BlockLayout("q5_1", 32, 24, 2, 8, 4, 4, high=4, high_bits=1, joined=True),
        BlockLayout("q8_0", 32, 34, 1, 2, 8, 8, zero=128, joined=True),
        BlockLayout("iq4_nl", 32, 18, 2, 2, 4, 4, zero=128, joined=True),
        BlockLayout("q2_k", 256, 84, 4, 16, 8, 4),
        BlockLayout("q3_k", 256, 110, 4, 32, 8, 4, zero=4, high=0, high_bits=1),
        BlockLayout("q4_k", 256, 144, 2, 16, 8, 8),
        BlockLayout("q5_k", 256, 176, 2, 48, 8, 8, high=16, high_bits=1),
        BlockLayout("q6_k", 256, 210, 2, 0, 16, 4, zero=32, high=128, high_bits=2),
    )
}


@dataclass(frozen=True)
class BlockPlanes:
    """How activations lie in memory that meet blocks of a kind: a row of uint32 has words of four
    signed bytes, by plane, the most significant first, field and low word; then what the values of
    groups add up to, float32, by group and block, repeated up to `lanes` blocks; then the unit."""

    kind: str
    planes: int
    lanes: int

    @property
    def layout(self) -> BlockLayout:
        return LAYOUTS[self.kind]

    def words(self, blocks: Any) -> Any:
        """Of bytes."""
        return blocks * (self.planes * self.layout.fields * self.layout.words)

    def size(self, blocks: int) -> int:
        """Words of a row."""
        return int(self.unit_word(blocks)) + 1

    def word(self, blocks: Any, plane: int, field: int, low: Any) -> Any:
        return blocks * ((plane * self.layout.fields + field) * self.layout.words) + low

    def sum_word(self, blocks: Any, group: Any, block: Any) -> Any:
        return self.words(blocks) + (group * self.lanes + block)

    def unit_word(self, blocks: Any) -> Any:
        return self.words(blocks) + self.layout.groups * self.lanes


@dataclass(frozen=True)
class ByteCodes:
    """How the right operand of `byte_matmul` lies in memory: GGUF's blocks of a kind, or integers
    of `bits` bits in words, of which `group_words` words of four share a scale (0: all of a row).
    """

    kind: str = ""
    bits: int = 0
    group_words: int = 0

    @property
    def layout(self) -> BlockLayout:
        return LAYOUTS[self.kind]

    @property
    def small(self) -> bool:
        """Codes are below 128."""
        return self.layout.small if self.kind else self.bits < 8
