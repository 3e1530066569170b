"""Writes docs/names.md: every public name of NumPy, PyTorch and JAX, and what numus has.

`python -m tools.names` after a name came or went. `tools/peer_names.json` has the names of the
others; a name that is missing needs a reason in `tools/names_reasons.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numus as nm
import numus.jax as jax
import numus.torch as torch
from numus.torch._owned import Names
from tools.names_reasons import DIFFERENCES, ELSEWHERE, INTERNALS, REASONS

PEERS = Path(__file__).with_name("peer_names.json")
PATH = Path(__file__).parent.parent / "docs" / "names.md"

_HEAD = """# Names of NumPy, PyTorch and JAX

Every public name of NumPy {numpy}, PyTorch {torch} and JAX {jax}, and what numus has. NumPy's names
are at the top of numus (`nm.name`), PyTorch's in `numus.torch` and JAX's in `numus.jax`, under the
same path. A difference is told by
hand, or found by comparing parameters. The share is that of names which are no internals of their
library. Written by `python -m tools.names`; a test keeps it true.
"""
_SAID_ELSEWHERE = {
    "self",
    "out",
    "generator",
    "requires_grad",
}  # every function takes them, or none


def owner_of(peer: str) -> Any:
    """Where numus has the names of a peer."""
    if peer == "numpy":
        return nm
    found: Any = jax if peer.startswith("jax") else torch
    for part in peer.split(".")[1:]:
        found = getattr(found, part)
    return found


def peers() -> dict[str, Any]:
    """The names of the peers, by peer."""
    found: dict[str, Any] = json.loads(PEERS.read_text())
    return found


_PEERS = peers()


def resolve(path: str) -> Any:
    """What a dotted path under numus names."""
    found: Any = nm
    for part in path.split("."):
        found = getattr(found, part)
    return found


def reason_for(peer: str, name: str) -> str | None:
    """Why a name is not there, or where else; None where nobody has said it."""
    if name in ELSEWHERE:
        return f"`nm.{ELSEWHERE[name]}`"
    for owner, pattern, reason in REASONS:
        if owner in (peer, "") and pattern.fullmatch(name):
            return reason.format(name=name, plain=name.rstrip("_"))
    return None


def has(peer: str, name: str) -> bool:
    """True if numus has a name of a peer."""
    return name in nm.__all__ if peer == "numpy" else hasattr(owner_of(peer), name)


def difference(peer: str, name: str) -> str | None:
    """What differs about a name that is there; None where nothing is known to."""
    if (peer, name) in DIFFERENCES:
        return DIFFERENCES[peer, name]
    theirs = _PEERS[peer].get("parameters", {}).get(name, ())
    ours = getattr(owner_of(peer), name)
    if not theirs or not callable(ours):
        return None
    try:
        names = Names(getattr(ours, "__wrapped__", ours))
    except ValueError:
        return None
    lacking = [p for p in theirs if p not in _SAID_ELSEWHERE and not names.takes(p)]
    return f"takes no {', '.join(f'`{p}`' for p in lacking)}" if lacking else None


def is_internal(peer: str, name: str) -> bool:
    """True if a name that is not there is an internal of its library."""
    return reason_for(peer, name) in INTERNALS


def share(peer: str) -> float:
    """How many of the names that are no internals are there."""
    listed = _PEERS[peer]["names"]
    there = sum(has(peer, n) for n in listed)
    return there / (there + sum(not has(peer, n) and not is_internal(peer, n) for n in listed))


def unexplained() -> list[str]:
    """Names that are not there without a reason."""
    return [
        f"{peer}.{name}"
        for peer, found in peers().items()
        for name in found["names"]
        if not has(peer, name) and reason_for(peer, name) is None
    ]


def page() -> str:
    """The contents of the page."""
    found = peers()
    versions = {peer: found[peer]["version"] for peer in ("numpy", "torch", "jax")}
    text = _HEAD.format(**versions)
    text += "\n| | names | there | there with a difference | elsewhere or not there | share |\n"
    text += "|---|---|---|---|---|---|\n"
    parts = ""
    for peer, listed in found.items():
        names = listed["names"]
        there = [n for n in names if has(peer, n)]
        told = {n: difference(peer, n) for n in there}
        differing = [n for n in there if told[n] is not None]
        missing = [n for n in names if n not in set(there)]
        counts = (len(names), len(there) - len(differing), len(differing), len(missing))
        text += f"| {peer} | " + " | ".join(map(str, counts)) + f" | {share(peer):.0%} |\n"
        parts += f"\n## {peer}\n\n### There\n\n"
        parts += " ".join(f"`{n}`" for n in there if n not in differing) + "\n"
        if differing:
            parts += "\n### There with a difference\n\n| name | difference |\n|---|---|\n"
            parts += "".join(f"| `{n}` | {told[n]} |\n" for n in differing)
        parts += "\n### Elsewhere, or not there\n\n| reason or place | names |\n|---|---|\n"
        groups: dict[str, list[str]] = {}
        for n in missing:
            groups.setdefault(str(reason_for(peer, n)), []).append(n)
        for reason, grouped in groups.items():
            parts += f"| {reason} | " + " ".join(f"`{n}`" for n in grouped) + " |\n"
    return text + parts


if __name__ == "__main__":
    PATH.write_text(page())
