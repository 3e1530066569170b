"""Loader of relocatable ELF objects (x86-64) into a code arena.

LLVM's linkers map every object on their own. Kernels need little of a linker: their sections lie
together, in the small code model, and the few functions they call (`memset`, `fma`) are the
process's own, reached through a table behind the code.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import NamedTuple

from numus.errors import CompileError
from numus.runtime.cpu.code_arena import CodeArena
from numus.runtime.llvm_macros import function_address

_X86_64 = 62
_SYMTAB, _RELA, _NOBITS = 2, 4, 8  # section types
_WRITE, _ALLOC = 1, 2  # section flags
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1  # section numbers of symbols
_UNWIND = ".eh_frame"  # nothing unwinds through kernels
# relocations
_64, _PC32, _PLT32, _PC64 = 1, 2, 4, 24
_GOTPCREL = (9, 41, 42)
_JUMP = bytes((0xFF, 0x25, 0xF2, 0xFF, 0xFF, 0xFF, 0xCC, 0xCC))  # jmp *-14(%rip): the word before


class _Section(NamedTuple):
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int  # of relocations: the symbols
    info: int  # of relocations: the section they apply to
    align: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


class _Relocation(NamedTuple):
    section: int
    offset: int
    type: int
    symbol: _Symbol
    addend: int


class _Object:
    """Sections, symbols and relocations of an object file."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != b"\x7fELF\2\1" or struct.unpack_from("<HH", code, 16) != (1, _X86_64):
            raise CompileError("not an ELF object of x86-64")
        self.code = code
        (start,) = struct.unpack_from("<Q", code, 40)
        count, names = struct.unpack_from("<HH", code, 60)
        raw = [struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i) for i in range(count)]
        self.sections = [
            _Section(self._text(raw[names][4] + s[0]), s[1], s[2], *s[4:9]) for s in raw
        ]
        (table,) = (s for s in self.sections if s.type == _SYMTAB)
        strings = self.sections[table.link].offset
        self.symbols = [
            _Symbol(self._text(strings + name), section, value)
            for name, _, _, section, value, _ in self._records("<IBBHQQ", table)
        ]

    def _text(self, at: int) -> str:
        return self.code[at : self.code.index(0, at)].decode()

    def _records(self, layout: str, section: _Section) -> Iterator[tuple[int, ...]]:
        end = section.offset + section.size
        return struct.iter_unpack(layout, self.code[section.offset : end])

    def loaded(self, writable: bool) -> list[int]:
        """The numbers of the sections that are loaded."""
        return [
            i
            for i, s in enumerate(self.sections)
            if s.flags & _ALLOC and s.name != _UNWIND and bool(s.flags & _WRITE) is writable
        ]

    def relocations(self) -> Iterator[_Relocation]:
        for section in self.sections:
            target = self.sections[section.info] if section.type == _RELA else None
            if target is not None and target.flags & _ALLOC and target.name != _UNWIND:
                for offset, info, addend in self._records("<QQq", section):
                    symbol = self.symbols[info >> 32]
                    yield _Relocation(section.info, offset, info & 0xFFFFFFFF, symbol, addend)


class Image(NamedTuple):
    """A loaded object."""

    address: int
    nbytes: int


def load(code: bytes, symbols: tuple[str, ...], arena: CodeArena) -> tuple[tuple[int, ...], Image]:
    """Load an object, for the addresses of these symbols; CompileError where it is not one that
    this loader knows."""
    try:
        return _Layout(_Object(code)).load(symbols, arena)
    except (struct.error, IndexError, ValueError) as error:
        raise CompileError(f"a damaged object file: {error}") from None


class _Layout:
    """Offsets of an object's sections and table in memory."""

    def __init__(self, found: _Object) -> None:
        self._object = found
        self._offsets: dict[int, int] = {}
        self._relocations = list(found.relocations())
        end = self._place(found.loaded(writable=False), 0)
        # entries of two words: an address, and code that jumps to it
        self._table = (end + 15) & -16
        indirect = {
            r.symbol for r in self._relocations if r.type in _GOTPCREL or self._is_external(r)
        }
        self._entries = {s: self._table + 16 * i for i, s in enumerate(indirect)}
        self._code_bytes = CodeArena.round_up(self._table + 16 * len(indirect))
        data = found.loaded(writable=True)
        self._nbytes = self._place(data, self._code_bytes) if data else self._code_bytes

    def _place(self, numbers: list[int], at: int) -> int:
        for number in numbers:
            section = self._object.sections[number]
            align = max(section.align, 1)
            self._offsets[number] = at = -(-at // align) * align
            at += section.size
        return at

    @staticmethod
    def _is_external(relocation: _Relocation) -> bool:
        return relocation.symbol.section == _UNDEFINED

    def load(self, wanted: tuple[str, ...], arena: CodeArena) -> tuple[tuple[int, ...], Image]:
        named = {s.name: s for s in self._object.symbols if s.section in self._offsets}
        if not named.keys() >= set(wanted):
            raise CompileError(f"an object file without {wanted}")
        image = bytearray(self._nbytes)
        for number, offset in self._offsets.items():
            section = self._object.sections[number]
            if section.type != _NOBITS:
                content = self._object.code[section.offset : section.offset + section.size]
                if len(content) != section.size:
                    raise CompileError("a truncated object file")
                image[offset : offset + section.size] = content
        base = arena.allocate(self._nbytes)
        try:
            for symbol, offset in self._entries.items():
                struct.pack_into("<Q8s", image, offset, self._address(symbol, base), _JUMP)
            for relocation in self._relocations:
                self._apply(relocation, image, base)
            ctypes.memmove(base, bytes(image), len(image))
            arena.seal(base, self._code_bytes)
        except BaseException:
            arena.release(base, self._nbytes)
            raise
        return tuple(self._address(named[w], base) for w in wanted), Image(base, self._nbytes)

    def _address(self, symbol: _Symbol, base: int) -> int:
        if symbol.section == _UNDEFINED:
            return _process_symbol(symbol.name)
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section not in self._offsets:
            raise CompileError(f"symbol {symbol.name!r} is in no loaded section")
        return base + self._offsets[symbol.section] + symbol.value

    def _apply(self, r: _Relocation, image: bytearray, base: int) -> None:
        at = self._offsets[r.section] + r.offset
        if r.type in _GOTPCREL:
            target = base + self._entries[r.symbol]
        elif self._is_external(r) and r.type == _PLT32:
            target = base + self._entries[r.symbol] + 8
        else:
            target = self._address(r.symbol, base)
        if r.type in (_64, _PC64):
            value = target + r.addend - (base + at if r.type == _PC64 else 0)
            struct.pack_into("<Q", image, at, value & (1 << 64) - 1)
        elif r.type in (_PC32, _PLT32, *_GOTPCREL):
            struct.pack_into("<i", image, at, target + r.addend - (base + at))
        else:
            raise CompileError(f"relocation {r.type} is unknown")


def _process_symbol(name: str) -> int:
    try:
        return function_address(getattr(ctypes.CDLL(None), name))
    except AttributeError:
        raise CompileError(f"a kernel calls {name!r}, which this process does not have") from None
