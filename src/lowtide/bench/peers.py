"""What does Lowtide compete with on real steps, and how is each variant made, checked and measured?

The peers: eager, `torch.utils.checkpoint` around each block, and `torch.compile` (aot_eager) with torch's own ratio of saved
activations at five values. Lowtide is given the peak that each of them reached, and then the least budget it can keep. Every
variant is a copy of one model with compiled code of its own; all live in one process and are timed in turn.

Recurrent layers are opened to Dynamo for the peers too: by default it leaves the whole frame around them alone, and the ratio would
change nothing.
"""

from __future__ import annotations

import copy
import gc
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from lowtide import api
from lowtide.bench.models import Trained
from lowtide.bench.race import Agreement, Row, budgets, interleave
from lowtide.capture.rnn import rnn_config
from lowtide.errors import BudgetError
from lowtide.measure.compare import Results, worst_error
from lowtide.measure.peak import held_bytes, measure_peak
from lowtide.plan.plan import Plan
from lowtide.units import format_bytes

__all__ = ["EAGER", "PEERS", "RATIOS", "Contest", "Peer", "agreement"]

RATIOS = (0.8, 0.6, 0.4, 0.2, 0.0)
_ABOVE_FLOOR = (1.01, 1.05, 1.25)
"""Shares of the floor tried as Lowtide's least budget: searches end by the clock, and the next may find less."""
_SEED = 1


@dataclass(frozen=True)
class Peer:
    name: str
    change: Callable[[Trained], object]
    """Makes a plain model, in place, the variant."""
    config: Callable[[], AbstractContextManager[object]] = nullcontext
    """Settings of torch that are held while a step runs."""


def checkpoint_blocks(model: Trained) -> None:
    for block in model.blocks():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def compile_aot_eager(model: Trained) -> None:
    # Dynamo keeps compiled code by code object and backend, not by module: with a shared backend the first ratio's code would
    # silently serve all others.
    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        compiled: Callable[..., object] = aot_eager(graph, inputs)
        return compiled

    known = inspect.signature(torch.compile).parameters
    isolated = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    model.compile(backend=backend, dynamic=False, **isolated)


@contextmanager
def at_ratio(ratio: float) -> Iterator[None]:
    with functorch_config.patch(activation_memory_budget=ratio), rnn_config():
        yield


EAGER = Peer("eager", lambda model: None)
PEERS = (
    EAGER,
    Peer("checkpoint", checkpoint_blocks),
    *(Peer(f"ratio {ratio:g}", compile_aot_eager, partial(at_ratio, ratio)) for ratio in RATIOS),
)


class Step:
    """One training step of a variant, always with the same seed. Gradients start from None."""

    def __init__(self, model: Trained, args: Sequence[Tensor], peer: Peer) -> None:
        self.model, self.args, self.peer = model, args, peer

    def __call__(self) -> None:
        torch.manual_seed(_SEED)
        with self.peer.config():
            self.model(*self.args).backward()

    def clean(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def results(self, buffers: Sequence[Tensor]) -> tuple[Results, Results]:
        """Gradients and buffers after one step that begins with the given buffers."""
        with torch.no_grad():
            for mine, start in zip(self.model.buffers(), buffers, strict=True):
                mine.copy_(start)
        self.clean()
        self()
        gradients = {name: p.grad for name, p in self.model.named_parameters()}
        self.clean()
        return gradients, {name: b.clone() for name, b in self.model.named_buffers()}

    def peak(self) -> int:
        self.clean()
        peak = measure_peak(self, held_bytes(self.model, self.args))
        self.clean()
        return peak


class Contest:
    """All variants of one model."""

    def __init__(
        self,
        model: Trained,
        args: Sequence[Tensor],
        *,
        seconds: float = 30.0,
        tell: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self.plain, self.args, self.seconds = model, args, seconds
        self.tell = tell
        """Called with each row when its peak is measured or it failed."""
        self.rows: list[Row] = []
        self.steps: dict[str, Step] = {}
        self.plans: dict[str, Plan] = {}
        self.floor: int | None = None
        """The smallest peak that Lowtide found a plan for, in simulated bytes."""
        self.expected = Step(copy.deepcopy(model), args, EAGER).results(list(model.buffers()))

    def enter_peers(self, peers: Sequence[Peer] = PEERS) -> None:
        for peer in peers:
            self.enter(peer, Row(peer.name))

    def enter_lowtide(self) -> None:
        """At each peak that was reached, from the largest on."""
        for budget, rivals in reversed(budgets(self.rows)):
            self.fit(Row(f"Lowtide {format_bytes(budget)}", rivals, budget))

    def enter_lowest(self) -> None:
        """At the least budget that Lowtide can keep."""
        try:
            api.fit(copy.deepcopy(self.plain), self.args, budget=1, seconds=self.seconds)
        except BudgetError as error:
            self.floor = error.floor
        except Exception as error:
            self.add(Row("Lowtide, lowest", budget=1, failed=_words(error)))
        for more in _ABOVE_FLOOR if self.floor else ():
            row = Row("Lowtide, lowest", budget=int((self.floor or 0) * more))
            if self.fit(row, keep_failed=more == _ABOVE_FLOOR[-1]):
                break

    def fit(self, row: Row, *, keep_failed: bool = True) -> bool:
        def change(model: Trained) -> Plan:
            return api.fit(model, self.args, budget=row.budget or 1, seconds=self.seconds)

        return self.enter(Peer(row.name, change), row, keep_failed=keep_failed)

    def enter(self, peer: Peer, row: Row, *, keep_failed: bool = True) -> bool:
        """Ready a variant, compare its results, measure its peak. Whatever it raises is written in its row."""
        model, started = copy.deepcopy(self.plain), time.perf_counter()
        step = Step(model, self.args, peer)
        try:
            made = peer.change(model)
            step()
            row.ready_seconds = time.perf_counter() - started
            row.agreement = agreement(step.results(list(self.plain.buffers())), self.expected)
            row.peak = step.peak()
        except BudgetError as error:
            row.failed = f"not reached: needs {format_bytes(error.floor)}"
        except Exception as error:
            row.failed = _words(error)
        else:
            self.steps[row.name] = step
            if isinstance(made, Plan):
                self.plans[row.name] = made
                row.predicted_peak, row.predicted_overhead = made.peak, made.overhead
                row.gap = made.gap
        if not row.failed or keep_failed:
            self.add(row)
        return not row.failed

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.tell(row)

    def race(self, rounds: int) -> Iterator[int]:
        """Time all variants in turn; yields the number of rounds done."""
        row = {r.name: r for r in self.rows}
        for number, name, seconds in interleave(self.steps, rounds, self.cleanup, clock()):
            row[name].times.append(seconds)
            if all(len(row[n].times) > number for n in self.steps):
                yield number + 1

    def cleanup(self, name: str) -> None:
        self.steps[name].clean()
        gc.collect()


def clock() -> Callable[[], float]:
    """A step on one thread is as long as the processor works on it, whatever else the machine does meanwhile."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def agreement(found: tuple[Results, Results], expected: tuple[Results, Results]) -> Agreement:
    (error, name), (other, other_name) = map(worst_error, found, expected)
    return Agreement(error, name, other, other_name)


def _words(error: Exception) -> str:
    inner = getattr(error, "inner_exception", error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__}: {lines[0] if lines else 'no reason given'}"
