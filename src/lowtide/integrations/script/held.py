"""What does a script hold while it trains, and what is a round given and left with?"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from lowtide.execute.caller import with_caller
from lowtide.execute.rounds import OrderedSurvey, Round, extras, round_graph
from lowtide.execute.session import Session
from lowtide.execute.survey import storage_key
from lowtide.integrations.script.ranks import bucket_bytes
from lowtide.integrations.script.trained import Call, tensors_in
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Kind
from lowtide.measure.memory import held_by_all

__all__ = ["Holdings", "OpenRound", "SeenRound", "given_bytes", "left_bytes", "whole_round"]

log = logging.getLogger("lowtide")


class Holdings:
    """Parameters, buffers and gradients of all modules that exist, and the state of all optimizers."""

    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.counting = False

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.counting:
            self.optimizers.add(optimizer)

    def by_kind(self, *, predict: bool) -> dict[str, int]:
        """`predict`: with the state that optimizers do not have yet."""
        modules = [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]
        self.counting = True  # a state that is not there yet is predicted with an optimizer of ours
        try:
            held = held_by_all(modules, list(self.optimizers), predict=predict)
        finally:
            self.counting = False
        buckets = sum(bucket_bytes(m) for m in modules)
        return {**held, str(Kind.OTHER): buckets} if buckets else held

    def state(self, *, predict: bool) -> int:
        return self.by_kind(predict=predict).get(Kind.OPTIMIZER, 0)


class OpenRound:
    """A round that is not over."""

    def __init__(
        self, first: nn.Module, survey: OrderedSurvey, held: Mapping[str, int], graphs: int
    ) -> None:
        self.first = weakref.ref(first)
        self.survey, self.held = survey, held
        self.graphs = graphs
        """How many were captured when it began."""
        self.batch: dict[int, int] = {}
        """Bytes by storage of what modules were given."""
        self.calls = self.backwards = 0
        self.updated = False

    def given(self, call: Call) -> None:
        self.calls += 1
        made = frozenset(k for seen in self.survey.seen for k in seen.outputs.values())
        self.batch.update(given_bytes(call, made))


@dataclass(frozen=True)
class SeenRound:
    """A surveyed round, and what there was besides."""

    round: Round
    batch: frozenset[int]
    """Storages of what modules were given."""
    left: int
    """Bytes of what the graphs returned that the script still held when the next round began."""


def given_bytes(call: Call, made: frozenset[int]) -> dict[int, int]:
    """Bytes by storage of what the call is given, without what graphs made."""
    found: dict[int, int] = {}
    for tensor in tensors_in((call.args, call.kwargs)):
        key = storage_key(tensor)
        if key is not None and key not in made and tensor.grad_fn is None:
            found[key] = tensor.untyped_storage().nbytes()
    return found


def left_bytes(survey: OrderedSurvey) -> int:
    """Of what graphs returned, and the script still holds at the end."""
    found: dict[int, int] = {}
    for seen in survey.seen:
        for name, key in seen.outputs.items():
            if key in survey.left and key not in seen.inputs.values():
                graph = seen.piece.graph
                found[key] = graph.value[graph.storage(name)].bytes
    return sum(found.values())


def whole_round(session: Session, holdings: Holdings, seen: SeenRound) -> Graph:
    """A round as one graph, with everything that is held and that the code between takes counted in. The session is told of the latter."""
    then, held_now = dict(seen.round.held), session.held
    grown = max(0, holdings.state(predict=False) - then.get(Kind.OPTIMIZER, 0))
    graph, program = round_graph(seen.round, seen.batch)
    try:
        session.held = lambda: then
        found = extras(seen.round, session.with_held(graph), program, grown)
        log.info("a round of %d segments takes besides its graphs %s", len(graph.segments), found)
        others = then.get(Kind.OTHER, 0) + seen.left
        state = holdings.state(predict=True)
        held = {**then, str(Kind.OPTIMIZER): state, str(Kind.OTHER): others}
        session.held = lambda: held
        whole = with_caller(session.with_held(graph), found.before, found.after)
    finally:
        session.held = held_now
    session.learnt = max(session.learnt, found.inside)
    backwards = {s for s, one in enumerate(graph.segments) if one.name.startswith("backward")}
    waits = max((size for s, size in found.before.items() if s in backwards), default=0)
    session.caller = (max(session.caller[0], waits), max(session.caller[1], found.after))
    check_graph(whole)
    return whole
