"""Pages of machine code, cut from large mappings.

A mapping of its own for every kernel would meet the kernel's limit on mappings (`vm.max_map_count`
on Linux). Pages are writable or executable, never both; neighbours of the same kind are one mapping
to the system.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import mmap
import os
from typing import Any

from numus.errors import CompileError, OutOfMemoryError

_READ, _WRITE, _EXECUTE = 1, 2, 4  # PROT_READ, …
_DONTNEED = getattr(mmap, "MADV_DONTNEED", 4)
_CHUNK_BYTES = 1 << 20
_FAILED = ctypes.c_void_p(-1).value


def _library() -> Any:
    c = ctypes.CDLL(None, use_errno=True)
    n, p = ctypes.c_size_t, ctypes.c_void_p
    c.mmap.restype = p
    c.mmap.argtypes = [p, n, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t]
    c.mprotect.argtypes = c.madvise.argtypes = [p, n, ctypes.c_int]
    return c


class CodeArena:
    """Not thread-safe. Mappings stay until the process ends: kernels that come later use them."""

    def __init__(self) -> None:
        self._c = _library()
        self._free: list[tuple[int, int]] = []  # (address, bytes), by address
        self.mapped_bytes = 0

    def allocate(self, nbytes: int) -> int:
        """The address of writable pages."""
        nbytes = self.round_up(nbytes)
        i = next((i for i, (_, size) in enumerate(self._free) if size >= nbytes), None)
        if i is None:
            new = (self._map(size := max(nbytes, _CHUNK_BYTES)), size)
            i = bisect.bisect(self._free, new)
            self._free.insert(i, new)
        address, size = self._free[i]
        self._protect(address, nbytes, _READ | _WRITE)
        if size > nbytes:
            self._free[i] = (address + nbytes, size - nbytes)
        else:
            del self._free[i]
        return address

    def seal(self, address: int, nbytes: int) -> None:
        """Make pages executable."""
        self._protect(address, self.round_up(nbytes), _READ | _EXECUTE)

    def release(self, address: int, nbytes: int) -> None:
        """Return pages, which must not be in use any more."""
        nbytes = self.round_up(nbytes)
        self._c.madvise(address, nbytes, _DONTNEED)
        i = bisect.bisect(self._free, (address, 0))
        if i < len(self._free) and self._free[i][0] == address + nbytes:
            nbytes += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == address:
            before, size = self._free.pop(i := i - 1)
            address, nbytes = before, size + nbytes
        self._free.insert(i, (address, nbytes))

    @staticmethod
    def round_up(nbytes: int) -> int:
        return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE

    def _map(self, nbytes: int) -> int:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        # executable from the start, so that free pages are one mapping with the kernels around them
        address = self._c.mmap(None, nbytes, _READ | _EXECUTE, flags, -1, 0)
        if address == _FAILED:
            raise OutOfMemoryError(f"the cpu cannot provide {nbytes} bytes for machine code")
        self.mapped_bytes += nbytes
        return int(address)

    def _protect(self, address: int, nbytes: int, protection: int) -> None:
        if self._c.mprotect(address, nbytes, protection) == 0:
            return
        code = ctypes.get_errno()
        if code == errno.ENOMEM:  # too many mappings, say
            raise OutOfMemoryError("the cpu cannot provide pages for machine code")
        raise CompileError(
            f"the system does not let this process execute code that it compiled "
            f"({os.strerror(code)}); allow it (SELinux: execmem), or use another device"
        )
