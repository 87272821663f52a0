"""What if everything cheap is recomputed, unless keeping its result instead of its inputs takes no more room? Echo.

Follows Zheng, Vijaykumar, Pekhimenko, "Echo: compiler-based GPU memory footprint reduction for LSTM RNN training"
(ISCA 2020), and the pass its authors merged into MXNet:

1. Take the step without recomputation; note who reads each tensor, in forward and in backward.
2. From the outputs walk backwards through cheap ops; a heavy op stops the walk and starts the next one.
3. Where an input of such a region has a forward reader outside it, add that reader's branch, until nothing is added.
4. Shrink: the frontier is the ops whose inputs are all heavy or kept. Frontier ops that share inputs form a group.
   Keeping a group's outputs releases the inputs that only the frontier reads; it allocates the outputs that anyone
   reads, and it still pays for the inputs that someone else reads. Where released >= allocated the group is kept, and
   the frontier moves on.
5. What is left is recomputed. A heavy op is never run again; its gradient reads its inputs, recomputed or not.

Echo knows neither a budget nor a peak nor seconds. It has one program, which is returned whatever the budget.

How it is written here, and where it deviates:
- Steps 2 and 3 sort the cheap ops into regions such that no two regions share an input. Step 4 looks at an input and
  its readers only, so it does the same whether it is given one region or all: it is given all cheap forward ops.
- As in MXNet, an input of the step counts as released although its owner never frees it (their known answers need it).
- Their list of heavy ops names MXNet's; `HEAVY` names PyTorch's.
- They exclude cell states, whose recomputation chains back to the start of the sequence, by name. Here a storage is
  excluded if cheap ops alone carry it into a later step and on into one after that. Steps are told by heavy ops that
  share a parameter, as those of an unrolled recurrent layer do and those of a residual network do not.
- Ops that may not run again (and have no replay) stop the walk like heavy ones. Dropout masks need no special case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from heapq import heappop, heappush

from lowtide.ir.graph import Graph, Kind, Op
from lowtide.ir.program import Program
from lowtide.solve.baselines.keeping import write_program
from lowtide.solve.baselines.remaking import Remaking, remaking

__all__ = ["HEAVY", "echo", "echo_recomputed", "is_heavy"]

HEAVY = (
    r"(.*_)?(mm|bmm|addmm|baddbmm|addbmm|matmul|linear|mv|addmv|einsum)",
    r".*conv([0-9]d|olution|_transpose[0-9]d|_tbc).*",
    r".*scaled_dot_product.*",
    r".*(lstm|gru|rnn).*",
)
"""Patterns of op names, `mm` of `aten.mm.default`: matrix products, convolutions, attention, recurrent layers."""

_HEAVY = re.compile("|".join(f"(?:{pattern})" for pattern in HEAVY))


def echo(graph: Graph, budget: int) -> Program:
    way = remaking(graph)
    return _program(way, _dropped(way))


def echo_recomputed(graph: Graph) -> frozenset[str]:
    """The storages that Echo's program makes a second time."""
    way = remaking(graph)
    dropped = _dropped(way)
    again = (
        name
        for segment, name in _program(way, dropped)
        if graph.op[name].segment < segment or graph.op[name].rule
    )
    return frozenset(s for name in again for s in way.folded.makes[name] if s in dropped)


def is_heavy(target: str) -> bool:
    """`aten.mm.default` and `aten::mm` are; `aten.tanh.default` is not."""
    words = re.split(r"[.:]+", target)
    return _HEAVY.fullmatch(words[1] if len(words) > 1 else words[0]) is not None


def _program(way: Remaking, dropped: frozenset[str]) -> Program:
    return write_program(way, lambda storage: storage not in dropped)


def _dropped(way: Remaking) -> frozenset[str]:
    forward = _forward(way)
    carried = _carried(way, forward)
    cheap = [o for o in forward if not is_heavy(o.target)]
    region = {o.name for o in cheap if _may_drop(way, o, carried)}
    left = _Shrinking(way, region).run()
    return frozenset(s for name in left for s in way.folded.makes[name])


def _forward(way: Remaking) -> list[Op]:
    """Captured ops that a later segment could run again, in order."""
    pieces = [s.piece for s in way.graph.segments]
    last = {piece: segment for segment, piece in enumerate(pieces)}
    return [way.graph.op[name] for segment, name in way.captured if segment < last[pieces[segment]]]


def _may_drop(way: Remaking, op: Op, carried: set[str]) -> bool:
    makes = way.folded.makes[op.name]
    return bool(makes) and all(s in way.droppable and s not in carried for s in makes)


def _carried(way: Remaking, forward: list[Op]) -> set[str]:
    """Storages that a cheap op takes into a later step, from where cheap ops go on into one after that: cell states."""
    steps = _steps(way, forward)
    carried: set[str] = set()
    entered: dict[str, int] = {}
    for op in reversed(forward):
        if is_heavy(op.target):
            continue
        reads, makes = way.folded.reads[op.name], way.folded.makes[op.name]
        beyond = max((entered.get(s, 0) for s in makes), default=0)
        now = max((steps.get(s, 0) for s in reads), default=0)
        for storage in reads:
            later = steps.get(storage, now) < now
            entered[storage] = max(entered.get(storage, 0), beyond + later)
            if later and beyond:
                carried.add(storage)
    return carried


def _steps(way: Remaking, forward: list[Op]) -> dict[str, int]:
    """On how many steps of unrolled layers, one after another, each forward storage depends."""
    shared = _shared_parameters(way, forward)
    steps: dict[str, int] = {}
    for op in forward:
        reads = way.folded.reads[op.name]
        depth = max((steps.get(s, 0) for s in reads), default=0)
        depth += is_heavy(op.target) and not shared.isdisjoint(reads)
        steps.update(dict.fromkeys(way.folded.makes[op.name], depth))
    return steps


def _shared_parameters(way: Remaking, forward: list[Op]) -> set[str]:
    """Parameters that more than one heavy forward op reads."""
    seen: set[str] = set()
    shared: set[str] = set()
    for op in forward:
        if is_heavy(op.target):
            for storage in way.folded.reads[op.name]:
                if way.graph.value[storage].kind is Kind.PARAMETER:
                    (shared if storage in seen else seen).add(storage)
    return shared


class _Shrinking:
    """Step 4: the ops still to be recomputed, and those of them whose inputs are all heavy or kept."""

    def __init__(self, way: Remaking, region: set[str]) -> None:
        self.way = way
        self.region = set(region)
        self.place = {name: i for i, (_, name) in enumerate(way.captured)}
        self.maker = {s: name for name in region for s in way.folded.makes[name]}
        self.waits = {name: self.inputs_in_region(name) for name in region}
        self.frontier = {name for name, inputs in self.waits.items() if not inputs}

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """Who reads each storage, in forward and in backward."""
        readers: dict[str, list[str]] = {}
        for _, name in self.way.captured:
            for storage in self.way.folded.reads[name]:
                readers.setdefault(storage, []).append(name)
        return readers

    def inputs_in_region(self, name: str) -> set[str]:
        return {self.maker[s] for s in self.way.folded.reads[name] if s in self.maker}

    def run(self) -> set[str]:
        queue = sorted((self.place[name], name) for name in self.frontier)
        while queue:
            _, name = heappop(queue)
            if name not in self.frontier:
                continue
            group = self.group(name)
            if self.released(group) >= self.allocated(group):
                for new in self.keep(group):
                    heappush(queue, (self.place[new], new))
        return self.region

    def group(self, name: str) -> set[str]:
        """The frontier ops that share an input with this one, or with one that does."""
        group, pending, seen = {name}, [name], set[str]()
        while pending:
            for storage in self.way.folded.reads[pending.pop()]:
                if storage in seen:
                    continue
                seen.add(storage)
                new = [r for r in self.readers[storage] if r in self.frontier and r not in group]
                group.update(new)
                pending.extend(new)
        return group

    def released(self, group: set[str]) -> int:
        return self.bytes(s for s in self.inputs(group) if self.only_frontier_reads(s))

    def allocated(self, group: set[str]) -> int:
        outputs = {s for name in group for s in self.way.folded.makes[name] if s in self.readers}
        inputs = {s for s in self.inputs(group) if not self.only_frontier_reads(s)}
        return self.bytes(outputs | inputs)

    def inputs(self, group: set[str]) -> set[str]:
        return {s for name in group for s in self.way.folded.reads[name]}

    def only_frontier_reads(self, storage: str) -> bool:
        return all(reader in self.frontier for reader in self.readers[storage])

    def bytes(self, storages: Iterable[str]) -> int:
        return sum(self.way.folded.bytes[s] for s in storages)

    def keep(self, group: set[str]) -> list[str]:
        """Take the group out of the region; the ops that thereby join the frontier."""
        self.region -= group
        self.frontier -= group
        new = []
        for name in group:
            for storage in self.way.folded.makes[name]:
                for reader in self.readers.get(storage, ()):
                    if reader in self.region:
                        self.waits[reader].discard(name)
                        if not self.waits[reader] and reader not in self.frontier:
                            self.frontier.add(reader)
                            new.append(reader)
        return new
