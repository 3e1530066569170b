"""Pipeline schedules: in which order each rank computes stages of microbatches, and what it sends.

GPipe (Huang et al. 2019) runs all forward passes first; 1F1B (PipeDream-Flush, Narayanan et al.
2021) begins a backward pass as soon as there is one, so that a rank keeps the activations of as
many microbatches as there are ranks at most; interleaved 1F1B (Megatron-LM, Narayanan et al. 2021)
gives each rank several stages, far apart from each other, for a smaller bubble.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from numus.errors import DistributedError

__all__ = ["Action", "Schedule", "make_schedule"]

_KINDS = ("gpipe", "1f1b", "interleaved")
_COMPUTES = ("forward", "backward")


class Action(NamedTuple):
    """Something that a rank does.

    Args:
        kind: "forward" or "backward" of a stage; "send" or "recv" of what it gives.
        stage: that computes, or whose result it is.
        microbatch: its number.
        what: of a message, "forward" (activations) or "backward" (gradients of activations).
        peer: of a message, the rank along the pipeline that it goes to or comes from.
    """

    kind: str
    stage: int
    microbatch: int
    what: str = ""
    peer: int = -1

    def __str__(self) -> str:
        if self.kind in _COMPUTES:
            return f"{self.kind[0].upper()}{self.stage}.{self.microbatch}"
        arrow = "→" if self.kind == "send" else "←"
        return f"{self.what[0]}{self.stage}.{self.microbatch}{arrow}{self.peer}"


@dataclass(frozen=True)
class Schedule:
    """What each rank along a pipeline does, in order.

    Args:
        ranks: how many there are; stage s is on rank s % ranks.
        stages: how many there are, on all ranks together.
        microbatches: that a batch is cut into.
        computes: forward and backward passes by rank; messages follow from them (`actions`).

    >>> schedule = nm.distributed.parallel.make_schedule("1f1b", ranks=2, microbatches=3)
    >>> print(schedule)
    rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
    rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
    >>> schedule.bubble()
    0.25
    """

    ranks: int
    stages: int
    microbatches: int
    computes: tuple[tuple[Action, ...], ...]

    def __str__(self) -> str:
        return "\n".join(
            f"rank {r}: {' '.join(map(str, actions))}" for r, actions in enumerate(self.computes)
        )

    def rank_of(self, stage: int) -> int:
        """The rank that has a stage."""
        return stage % self.ranks

    def actions(self) -> list[list[Action]]:
        """What each rank does, messages included.

        A result leaves as soon as it is there; sending waits for nobody. A message is received
        when its content is needed, and together with it those that the same rank has sent before:
        messages between two ranks arrive in order.
        """
        outgoing = [[self._sent(action) for action in own] for own in self.computes]
        channels: dict[tuple[int, int], deque[Action]] = {}
        for rank, messages in enumerate(outgoing):
            for message in messages:
                if message is not None:
                    channels.setdefault((rank, message.peer), deque()).append(message)
        found: list[list[Action]] = []
        for rank, own in enumerate(self.computes):
            listed: list[Action] = []
            arrived: set[tuple[str, int, int]] = set()
            for action, message in zip(own, outgoing[rank], strict=True):
                needed = self._needed(action)
                if needed is not None and needed not in arrived:
                    peer = self.rank_of(needed[1])
                    for sent in _up_to(channels.get((peer, rank), deque()), needed, rank):
                        arrived.add((sent.what, sent.stage, sent.microbatch))
                        listed.append(sent._replace(kind="recv", peer=peer))
                listed.append(action)
                if message is not None:
                    listed.append(message)
            found.append(listed)
        left = [m for channel in channels.values() for m in channel]
        if left:
            raise DistributedError(f"pipeline schedule: nobody receives {_shown(left)}")
        return found

    def _sent(self, action: Action) -> Action | None:
        """The message with the result of an action, where another rank needs it."""
        to = action.stage + 1 if action.kind == "forward" else action.stage - 1
        if not 0 <= to < self.stages or self.rank_of(to) == self.rank_of(action.stage):
            return None
        return Action("send", action.stage, action.microbatch, action.kind, self.rank_of(to))

    def _needed(self, action: Action) -> tuple[str, int, int] | None:
        """What another rank has to send before an action."""
        source = action.stage - 1 if action.kind == "forward" else action.stage + 1
        if not 0 <= source < self.stages or self.rank_of(source) == self.rank_of(action.stage):
            return None
        return action.kind, source, action.microbatch

    def check(self) -> None:
        """Raise where a rank would wait forever, or does something twice or never."""
        wanted = {
            Action(kind, s, m)
            for kind in _COMPUTES
            for s in range(self.stages)
            for m in range(self.microbatches)
        }
        for rank, own in enumerate(self.computes):
            mine = {a for a in wanted if self.rank_of(a.stage) == rank}
            if len(own) != len(mine) or set(own) != mine:
                wrong = [a for a in mine if own.count(a) != 1] + [a for a in own if a not in mine]
                raise DistributedError(
                    f"pipeline schedule: rank {rank} does not do once each what is its own: "
                    f"{_shown(wrong)}"
                )
        self.timeline()

    def timeline(self, forward: float = 1.0, backward: float = 2.0) -> list[list[float]]:
        """When each action of `computes` ends, by rank, where a forward and a backward pass of a
        stage take these times and messages none."""
        actions = self.actions()
        ends: dict[Action, float] = {}
        sent: dict[tuple[str, int, int], float] = {}
        at, clocks = [0] * self.ranks, [0.0] * self.ranks
        moved = True
        while moved:
            moved = False
            for rank, own in enumerate(actions):
                while at[rank] < len(own):
                    action = own[at[rank]]
                    message = (action.what, action.stage, action.microbatch)
                    if action.kind == "recv":
                        if message not in sent:
                            break
                        clocks[rank] = max(clocks[rank], sent[message])
                    elif action.kind == "send":
                        sent[message] = clocks[rank]
                    else:
                        self._check_order(action, ends, rank)
                        clocks[rank] += forward if action.kind == "forward" else backward
                        ends[action] = clocks[rank]
                    at[rank] += 1
                    moved = True
        stuck = [(r, own[at[r]]) for r, own in enumerate(actions) if at[r] < len(own)]
        if stuck:
            waits = "; ".join(f"rank {r} waits for {action}" for r, action in stuck)
            raise DistributedError(f"pipeline schedule: deadlock: {waits}")
        return [[ends[action] for action in own] for own in self.computes]

    def _check_order(self, action: Action, ends: dict[Action, float], rank: int) -> None:
        """What a rank needs of itself has to be there."""
        needs = []
        if action.kind == "backward":
            needs.append(action._replace(kind="forward"))
        before = action.stage + (1 if action.kind == "backward" else -1)
        if 0 <= before < self.stages and self.rank_of(before) == rank:
            needs.append(action._replace(stage=before))
        for need in needs:
            if need not in ends:
                raise DistributedError(
                    f"pipeline schedule: rank {rank} does {action} before {need}, which it needs"
                )

    def bubble(self, forward: float = 1.0, backward: float = 2.0) -> float:
        """The share of the time in which a rank waits, in the mean over ranks.

        >>> nm.distributed.parallel.make_schedule("gpipe", ranks=4, microbatches=12).bubble()
        0.2
        """
        ends = self.timeline(forward, backward)
        whole = max(own[-1] for own in ends) * self.ranks
        work = self.stages * self.microbatches * (forward + backward)
        return round(1 - work / whole, 12)

    def in_flight(self) -> list[int]:
        """For each rank, of how many stages and microbatches it keeps activations at most."""
        found = []
        for own in self.computes:
            kept = most = 0
            for action in own:
                kept += 1 if action.kind == "forward" else -1
                most = max(most, kept)
            found.append(most)
        return found


def _up_to(channel: deque[Action], needed: tuple[str, int, int], rank: int) -> Iterable[Action]:
    """Messages of a channel up to a needed one."""
    while channel:
        message = channel.popleft()
        yield message
        if (message.what, message.stage, message.microbatch) == needed:
            return
    what, stage, microbatch = needed
    raise DistributedError(
        f"pipeline schedule: rank {rank} waits for the {what} pass of stage {stage} of microbatch "
        f"{microbatch}, which nobody sends"
    )


def _shown(actions: Iterable[Action]) -> str:
    listed = list(actions)
    return ", ".join(map(str, listed[:6])) + (" …" if len(listed) > 6 else "")


def make_schedule(kind: str, *, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """The schedule of a pipeline.

    Args:
        kind: "gpipe", "1f1b" or "interleaved".
        ranks: along the pipeline.
        microbatches: that a batch is cut into; for "interleaved" a multiple of the ranks.
        chunks: stages per rank; more than one for "interleaved".

    >>> made = nm.distributed.parallel.make_schedule("gpipe", ranks=2, microbatches=4)
    >>> made.stages, made.in_flight()
    (2, [4, 4])
    """
    if kind not in _KINDS:
        raise ValueError(f"make_schedule: {kind!r} must be one of {', '.join(_KINDS)}")
    if min(ranks, microbatches, chunks) < 1:
        raise ValueError(
            f"make_schedule: ranks={ranks}, microbatches={microbatches} and chunks={chunks} are at "
            "least 1"
        )
    if kind != "interleaved" and chunks > 1:
        raise ValueError(
            f"make_schedule: {kind!r} has one stage per rank, not {chunks}; take 'interleaved', or "
            f"{ranks} stages"
        )
    if kind == "interleaved" and microbatches % ranks:
        raise ValueError(
            f"make_schedule: 'interleaved' takes a multiple of {ranks} microbatches (the ranks of "
            f"the pipeline), not {microbatches}"
        )
    computes = []
    for rank in range(ranks):
        units = [
            (group * ranks + m, rank + chunk * ranks)
            for group in range(-(-microbatches // ranks))
            for chunk in range(chunks)
            for m in range(ranks)
            if group * ranks + m < microbatches
        ]
        last = chunks - 1
        backs = [(m, rank + (last - (s - rank) // ranks) * ranks) for m, s in units]
        if kind == "gpipe":
            ahead = len(units)
        elif chunks == 1:
            ahead = min(ranks - rank - 1, len(units))
        else:
            ahead = min((ranks - rank - 1) * 2 + last * ranks, len(units))
        forwards = [Action("forward", s, m) for m, s in units]
        backwards = [Action("backward", s, m) for m, s in backs]
        computes.append(_in_turn(forwards, backwards, ahead))
    return Schedule(ranks, ranks * chunks, microbatches, tuple(computes))


def _in_turn(forwards: list[Action], backwards: list[Action], ahead: int) -> tuple[Action, ...]:
    """Some forward passes, then one forward and one backward in turn, then the rest."""
    found = forwards[:ahead]
    for i, action in enumerate(forwards[ahead:]):
        found += [action, backwards[i]]
    return (*found, *backwards[len(forwards) - ahead :])
