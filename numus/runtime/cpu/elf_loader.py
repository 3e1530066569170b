"""Linker of relocatable ELF objects (x86-64), and loader of what it makes into a code arena.

LLVM's linkers map every object on their own. Kernels need little of a linker: their sections lie
together, in the small code model, and the few functions they call (`memset`, `fma`) are the
process's own, reached through a table behind the code. All that does not depend on addresses is
linked once, before code is stored (prelinking): loading writes a few words.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from numus.errors import CompileError
from numus.runtime.cpu.code_arena import CodeArena
from numus.runtime.llvm_macros import function_address

_X86_64 = 62
_SYMTAB, _RELA, _NOBITS = 2, 4, 8  # section types
_WRITE, _ALLOC = 1, 2  # section flags
_UNDEFINED = 0  # section number of symbols of others
_UNWIND = ".eh_frame"  # nothing unwinds through kernels
# relocations
_64, _PC32, _PLT32, _PC64 = 1, 2, 4, 24
_GOTPCREL = (9, 41, 42)
_MAGIC = b"image-1\n"
_HEAD = struct.Struct("<8s4I")  # the magic, a checksum, bytes of code, of all, and of the notes
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


def prelink(code: bytes) -> bytes:
    """Link an object, as far as no address is needed; CompileError where it is not one that this
    linker knows."""
    try:
        return _Layout(_Object(code)).link()
    except (struct.error, IndexError, ValueError) as error:
        raise CompileError(f"a damaged object file: {error}") from None


class _Layout:
    """Offsets of an object's sections and table in memory.

    What has to be done when it is loaded is noted in lines: where a symbol is (`at offset name`),
    words that hold addresses, of its own (`own at offset`) or of the process (`other at addend
    name`).
    """

    def __init__(self, found: _Object) -> None:
        self._object = found
        self._offsets: dict[int, int] = {}
        self._relocations = list(found.relocations())
        end = self._place(found.loaded(writable=False), 0)
        # entries of two words: an address, and code that jumps to it
        self._table = (end + 15) & -16
        indirect = dict.fromkeys(
            r.symbol for r in self._relocations if r.type in _GOTPCREL or self._is_external(r)
        )
        self._entries = {s: self._table + 16 * i for i, s in enumerate(indirect)}
        self._code_bytes = CodeArena.round_up(self._table + 16 * len(indirect))
        data = found.loaded(writable=True)
        self._nbytes = self._place(data, self._code_bytes) if data else self._code_bytes
        self._notes: list[str] = []

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

    def link(self) -> bytes:
        """The notes and the contents of memory."""
        found = self._object
        image = bytearray(self._nbytes)
        for number, offset in self._offsets.items():
            section = found.sections[number]
            if section.type != _NOBITS:
                content = found.code[section.offset : section.offset + section.size]
                if len(content) != section.size:
                    raise CompileError("a truncated object file")
                image[offset : offset + section.size] = content
        for symbol in found.symbols:
            if symbol.name and symbol.section in self._offsets:
                self._notes.append(f"at {self._offset(symbol)} {symbol.name}")
        for symbol, at in self._entries.items():
            self._note_address(at, symbol, 0)
            image[at + 8 : at + 16] = _JUMP
        for relocation in self._relocations:
            self._apply(relocation, image)
        notes = "\n".join(self._notes).encode()
        body = notes + bytes(image).rstrip(b"\0")
        sizes = (self._code_bytes, self._nbytes, len(notes))
        return _HEAD.pack(_MAGIC, _checksum(sizes, body), *sizes) + body

    def _offset(self, symbol: _Symbol) -> int:
        if symbol.section not in self._offsets:
            raise CompileError(f"symbol {symbol.name!r} is in no loaded section")
        return self._offsets[symbol.section] + symbol.value

    def _note_address(self, at: int, symbol: _Symbol, addend: int) -> None:
        """A word that holds the address of a symbol."""
        if symbol.section == _UNDEFINED:
            self._notes.append(f"other {at} {addend} {symbol.name}")
        else:
            self._notes.append(f"own {at} {self._offset(symbol) + addend}")

    def _apply(self, r: _Relocation, image: bytearray) -> None:
        at = self._offsets[r.section] + r.offset
        if r.type == _64:
            self._note_address(at, r.symbol, r.addend)
            return
        if r.type in _GOTPCREL:
            target = self._entries[r.symbol]
        elif self._is_external(r) and r.type == _PLT32:
            target = self._entries[r.symbol] + 8
        else:
            target = self._offset(r.symbol)
        if r.type == _PC64:
            struct.pack_into("<q", image, at, target + r.addend - at)
        elif r.type in (_PC32, _PLT32, *_GOTPCREL):
            struct.pack_into("<i", image, at, target + r.addend - at)
        else:
            raise CompileError(f"relocation {r.type} is unknown")


class Image(NamedTuple):
    """Loaded code."""

    address: int
    nbytes: int


def load(code: bytes, wanted: tuple[str, ...], arena: CodeArena) -> tuple[tuple[int, ...], Image]:
    """Load what `prelink` has made, for the addresses of symbols; CompileError where it is damaged,
    or needs what the process does not have."""
    try:
        magic, checksum, *sizes = _HEAD.unpack_from(code)
    except struct.error:
        raise CompileError("a truncated image of code") from None
    if magic != _MAGIC or checksum != _checksum(sizes, memoryview(code)[_HEAD.size :]):
        raise CompileError("a damaged image of code")
    code_bytes, nbytes, notes_bytes = sizes
    start = _HEAD.size + notes_bytes
    base = arena.allocate(nbytes)
    try:
        image = code[start:]
        ctypes.memmove(base, image, len(image))
        if nbytes > len(image):  # pages may have been used before
            ctypes.memset(base + len(image), 0, nbytes - len(image))
        found = {}
        for note in code[_HEAD.size : start].decode().split("\n"):
            kind, at, *rest = note.split(" ")
            if kind == "at":
                found[rest[0]] = base + int(at)
                continue
            address = base if kind == "own" else _process_symbol(rest[1])
            ctypes.c_uint64.from_address(base + int(at)).value = address + int(rest[0])
        missing = [name for name in wanted if name not in found]
        if missing:
            raise CompileError(f"an object file without {missing}")
        arena.seal(base, code_bytes)
    except BaseException:
        arena.release(base, nbytes)
        raise
    return tuple([found[name] for name in wanted]), Image(base, nbytes)


def _checksum(sizes: Iterable[int], body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(repr(tuple(sizes)).encode()))


def _process_symbol(name: str) -> int:
    try:
        return function_address(getattr(ctypes.CDLL(None), name))
    except AttributeError:
        raise CompileError(f"a kernel calls {name!r}, which this process does not have") from None
