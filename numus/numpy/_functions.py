"""The functions of `numus.numpy` that are not one call of the engine: a table of where they are."""

from __future__ import annotations

from numus.numpy._creation import *  # noqa: F403
from numus.numpy._creation import __all__ as _creation
from numus.numpy._iteration import *  # noqa: F403
from numus.numpy._iteration import __all__ as _iteration
from numus.numpy._joining import *  # noqa: F403
from numus.numpy._joining import __all__ as _joining
from numus.numpy._reductions import *  # noqa: F403
from numus.numpy._reductions import __all__ as _reductions
from numus.numpy._selection import *  # noqa: F403
from numus.numpy._selection import __all__ as _selection

__all__ = [*_creation, *_iteration, *_joining, *_reductions, *_selection]
