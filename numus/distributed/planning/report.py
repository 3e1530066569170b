"""Estimates as text."""

from __future__ import annotations

from numus.distributed.planning.estimate import Estimate
from numus.distributed.planning.machine import Machine

_GIB = 1 << 30


def text_of(found: Estimate, machine: Machine) -> str:
    """What a step of each rank takes."""
    m = found.memory
    parts = {
        "parameters": m.parameters,
        "gradients": m.gradients,
        "optimiser": m.optimizer,
        "activations": m.activations,
        "collectives": m.buffers,
    }
    lines = [f"{found.layout} on {found.layout.ranks} × {machine.name}", "", "memory per rank"]
    lines += [f"  {name:<12} {_shown(nbytes)}" for name, nbytes in parts.items()]
    verdict = "fits" if found.fits(machine) else "does NOT fit"
    lines.append(f"  {'in all':<12} {_shown(m.total)} of {machine.memory_gib:g} GiB: {verdict}")
    lines += ["", "collectives of a step, per rank"]
    lines += [
        f"  {t.axis:<7} {t.kind:<15} {t.calls:>7.0f} × {t.nbytes / t.calls / 2**20:>9.2f} MiB"
        f" {t.seconds * 1e3:>9.2f} ms"
        for t in found.traffic
    ] or ["  none"]
    seconds = {
        "computation": found.compute_seconds,
        "exposed": found.exposed_seconds,
        "bubble": found.bubble_seconds,
        "step": found.step_seconds,
    }
    lines += ["", "time of a step"]
    lines += [f"  {name:<12} {s * 1e3:>9.2f} ms" for name, s in seconds.items()]
    rate = found.flops / found.step_seconds / 1e12
    lines += [f"  {rate:.3g} TFLOP/s per rank", "", assumptions(machine)]
    return "\n".join(lines)


def _shown(nbytes: float) -> str:
    if nbytes < _GIB:
        return f"{nbytes / 2**20:>9.2f} MiB"
    return f"{nbytes / _GIB:>9.2f} GiB"


def assumptions(machine: Machine) -> str:
    """The machine model in a line."""
    speeds = ", ".join(f"{dtype} {t:g} TFLOP/s" for dtype, t in machine.tflops.items())
    return (
        f"machine {machine.name}: {speeds}; memory {machine.memory_gib:g} GiB at "
        f"{machine.bandwidth_gbs:g} GB/s; {machine.devices_per_node} per node at "
        f"{machine.node_gbs:g} GB/s, network {machine.network_gbs:g} GB/s, "
        f"{machine.latency_us:g} µs per message"
    )


def table_of(found: list[Estimate]) -> str:
    """Layouts in a table, the best first."""
    lines = [f"{'layout':<44} {'GiB per rank':>12} {'step':>12}"]
    lines += [
        f"{e.layout!s:<44} {e.memory.total / _GIB:>12.2f} {e.step_seconds * 1e3:>9.1f} ms"
        for e in found
    ]
    return "\n".join(lines)
