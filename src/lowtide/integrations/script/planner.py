"""How is a script's training planned while it runs? Survey, plan, check, and then out of the way.

    look      The script runs as it is and is measured. Only where it matters: the budget is a share of that peak, or the script's
              source speaks of `create_graph`, and a model whose gradients are differentiated again cannot be planned.
    survey    Trained modules run under small, quick plans of their own, while it is seen which graphs run in which order, what is passed between
              them, and what the code between them takes (`execute/rounds.py`).
    check     They run the plan of whole rounds. If a measured peak is over the budget, it is planned again with what was learnt.
    done      Nothing is watched any more. A new shape is planned when it comes.

Each phase lasts until an optimizer has updated, the first until one has that had its state before, so that gradients that accumulate and the
optimizer's own memory are seen.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch._dynamo import OptimizedModule

from lowtide.errors import BudgetError, DifferenceError, LowtideError, VerificationError
from lowtide.execute.fitting import make_session
from lowtide.execute.rounds import OrderedSurvey, Round, forward_only
from lowtide.execute.session import Options, Session
from lowtide.integrations.script.door import Door
from lowtide.integrations.script.held import (
    Holdings,
    OpenRound,
    SeenRound,
    given_bytes,
    left_bytes,
    whole_round,
)
from lowtide.integrations.script.pace import Pace
from lowtide.integrations.script.ranks import from_rank_0, is_first, largest
from lowtide.integrations.script.sources import differentiates_twice
from lowtide.integrations.script.trained import Call, Watcher
from lowtide.integrations.script.verify import Verifier
from lowtide.ir.graph import Graph, Kind
from lowtide.ir.program import unplanned
from lowtide.measure.memory import model_device
from lowtide.measure.meter import Meter
from lowtide.plan.plan import Plan
from lowtide.report.progress import showing
from lowtide.sim.memory import simulate
from lowtide.units import format_bytes

__all__ = ["Phase", "Planner"]

log = logging.getLogger("lowtide")

_ROUNDS = 8
"""A phase lasts no longer, even if no optimizer updates."""
_CHECKS = 4
"""How often it is planned again with what was learnt."""
_SURVEYS = 4
"""How often new modules may start it all over."""
_CALLS = 32
"""In a round with a backward: a script that retains its graphs never comes to rest."""


class Phase(Enum):
    LOOK = "look"
    SURVEY = "survey"
    CHECK = "check"
    DONE = "done"


class Planner(Watcher):
    def __init__(
        self,
        options: Options,
        say: Callable[[str], None],
        *,
        plan: Plan | None = None,
        verify: int = 0,
        steps: int = 0,
        exits: bool = False,
    ) -> None:
        """`plan`: one to run instead of making one. `verify`: how many planned calls are compared with the script's own code. `steps`: stop after so
        many under the plan; 0: never. `exits`: what stops the training ends the process."""
        self.options, self.say, self.exits = options, say, exits
        self.given = plan
        self.verifier, self.pace = Verifier(verify), Pace(steps)
        self.phase = Phase.LOOK
        self.session: Session | None = None
        self.meter = Meter(torch.device("cpu"))
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.alone: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules that run as they were."""
        self.holdings = Holdings()
        self.stopped: LowtideError | None = None
        self.failed = False
        self.before: int | None = None
        """The measured peak of the script as it is."""
        self.after = self.past_after = 0
        """The measured peak of planned steps; and of those before the newest survey."""
        self.surveys = self.checks = 0
        self.twice = self.again = False
        self.rounds: dict[object, SeenRound] = {}
        self.batch = 0
        """Bytes of the largest batch that was surveyed: a smaller one checks nothing."""
        self.wholes: list[Graph] = []
        self.plans: list[Plan] = []
        self.past: list[Plan] = []
        self.round: OpenRound | None = None
        self.count = 0
        """Rounds in this phase."""
        self.calling: Call | None = None

    @property
    def main_plan(self) -> Plan | None:
        """The largest step's."""
        return max((*self.past, *self.plans), key=lambda p: p.unplanned_peak, default=None)

    # What is told.

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        self.holdings.add(optimizer)

    def update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self.holdings.add(optimizer)
        if self.round is not None and not self.holdings.counting:
            self.round.updated = True
        if self.phase is Phase.DONE:
            self.pace.updated(optimizer)

    @contextmanager
    def differentiating_twice(self) -> Iterator[None]:
        self.twice = True
        try:
            yield
        finally:
            self.twice = False

    def backward_begins(self, call: Call) -> None:
        if self.round is not None:
            self.round.backwards += 1
        if self.twice and call.trains:
            self.leave(call.module, "its gradients are differentiated again (create_graph=True)")

    def call_begins(self, call: Call) -> None:
        if not call.trains or self.failed:
            return
        try:
            self.prepare(call)
        except Exception as error:  # of ours: the script is not to suffer from it
            if self.stopped is not None:
                raise
            log.exception("planning failed")
            self.give_up(f"planning failed with {type(error).__name__}: {error}")

    def evaluates(self) -> None:
        """What a script does between its steps may take long, and is no part of them."""
        if self.round is not None and self.round.updated:
            self.meter.pause()

    def prepare(self, call: Call) -> None:
        if self.phase is Phase.DONE and call.module in self.modules and not self.again:
            self.calling = call
            self.pace.called(call.module, bool(self.holdings.optimizers))
            self.verify(call)
            return
        if self.round is not None and self.is_over(self.round, call):
            self.end_round(self.round)
        if call.module in self.alone:
            return
        if call.module not in self.modules and not self.may_plan(call.module):
            return
        self.calling = call
        self.meter.resume()
        if self.round is None:
            self.begin_round(call)
        if self.phase is not Phase.LOOK and call.module not in self.modules:
            self.take(call.module)
        if self.round is not None:
            self.round.given(call)

    def call_ends(self, call: Call, output: Any) -> None:
        self.calling = None

    def may_plan(self, module: nn.Module) -> bool:
        if module._compiled_call_impl is None and not isinstance(module, OptimizedModule):
            return True
        self.leave(module, "it is compiled already")
        return False

    # Modules.

    def take(self, module: nn.Module) -> None:
        if self.surveys > _SURVEYS:
            self.leave(module, "new modules came too often to plan them with the others")
            return
        self.modules.add(module)
        if self.phase is not Phase.SURVEY and self.given is None:
            self.again = True  # from the next round on; until then it is planned by itself
        self.attach(module)

    def attach(self, module: nn.Module) -> None:
        assert self.session is not None
        module._compiled_call_impl = Door(module, self.session, self.leave, self.stop)

    def leave(self, module: nn.Module, why: str) -> None:
        """It runs as it was from now on."""
        if module in self.alone:
            return
        self.alone.add(module)
        self.modules.discard(module)
        if isinstance(module._compiled_call_impl, Door):
            module._compiled_call_impl = None
        self.say(f"{type(module).__name__} runs as it was, not planned: {why}")

    def give_up(self, why: str) -> None:
        self.failed = True
        self.meter.stop()
        self.round = None
        if self.session is not None:
            self.session.watch.survey = None
        self.say(f"the script runs as it was, not planned: {why}")
        self.close()

    def stop(self, error: LowtideError) -> None:
        """A script may well catch exceptions: it is left by its exit."""
        self.stopped = error
        raise SystemExit(error.exit_code) if self.exits else error

    def close(self) -> None:
        self.meter.stop()
        for module in self.modules:
            if isinstance(module._compiled_call_impl, Door):
                module._compiled_call_impl = None

    # Rounds.

    def is_over(self, round: OpenRound, call: Call) -> bool:
        if not round.backwards:
            return False
        if self.phase is Phase.LOOK or self.session is None:
            return call.module is round.first()
        return not self.session.watch.kept_bytes() or round.calls >= _CALLS

    def begin_round(self, call: Call) -> None:
        if self.session is None:
            device = model_device(call.module)
            self.meter = Meter(device)
            self.session = make_session(self.options, device, self.held)
            self.session.cautious = True
            self.session.planning = self.working
            if self.given is not None:
                self.phase, self.session.saved, self.plans = Phase.DONE, self.given, [self.given]
            elif self.options.budget.fraction is None and not differentiates_twice():
                self.phase = Phase.SURVEY
        if self.again and self.phase in (Phase.CHECK, Phase.DONE):
            self.survey_again()
        if self.phase is Phase.DONE:
            return
        survey = OrderedSurvey(self.meter)
        if self.phase is Phase.SURVEY:
            self.session.watch.survey = survey
        held = self.holdings.by_kind(predict=False)
        self.round = OpenRound(call.module, survey, held, len(self.session.pieces))
        self.meter.start()

    def end_round(self, open: OpenRound) -> None:
        assert self.session is not None
        peaks = self.meter.stop()
        open.survey.step_ends()
        self.session.watch.survey = None
        held = {**open.held, str(Kind.BATCH): sum(open.batch.values())}
        done = Round(open.survey, {k: v for k, v in held.items() if v}, peaks)
        self.round = None
        self.count += 1
        over = open.updated or not self.holdings.optimizers or self.count >= _ROUNDS
        if self.phase is Phase.LOOK:
            self.before = max(self.before or 0, done.peak or 0)
            # An update that made its state is followed by the first step that shows what all others need.
            grown = self.holdings.state(predict=False) > open.held.get(Kind.OPTIMIZER, 0)
            if over and (not grown or self.count >= _ROUNDS):
                self.phase, self.count = Phase.SURVEY, 0
                self.fix_budget(self.before)
        elif self.phase is Phase.SURVEY:
            self.rounds[done.signature] = SeenRound(
                done, frozenset(open.batch), left_bytes(open.survey)
            )
            # Compiling takes memory, too: of graphs that are new, the next round tells what they take.
            known = len(self.session.pieces) == open.graphs
            if over and (known or self.count >= _ROUNDS):
                self.make_plans()
        elif self.phase is Phase.CHECK:
            planned = sum(open.batch.values()) >= self.batch or self.count >= _ROUNDS
            self.check(done.peak, over and planned)

    def survey_again(self) -> None:
        assert self.session is not None
        self.again, self.phase, self.count = False, Phase.SURVEY, 0
        self.surveys += 1
        self.rounds.clear()
        self.past, self.past_after = [*self.past, *self.plans], self.after
        self.session.saved, self.session.more, self.session.cautious = None, (), True
        self.attach_anew()

    def attach_anew(self) -> None:
        assert self.session is not None
        self.session.begin()
        for module in self.modules:
            self.attach(module)

    # Plans.

    def make_plans(self) -> None:
        assert self.session is not None
        self.session.cautious = False
        found = [
            whole_round(self.session, self.holdings, seen)
            for seen in self.rounds.values()
            if seen.round.survey.runs()
        ]
        self.session.aside = forward_only([seen.round for seen in self.rounds.values()])
        self.batch = max((s.round.held.get(Kind.BATCH, 0) for s in self.rounds.values()), default=0)
        self.rounds.clear()
        if not found:  # no backward has come: keep looking
            self.session.cautious, self.count = True, 0
            return
        self.wholes = sorted(found, key=_unplanned_peak, reverse=True)
        self.fix_budget(self.before or _unplanned_peak(self.wholes[0]))
        self.plan()
        self.phase, self.count = Phase.CHECK, 0

    def fix_budget(self, before: int) -> None:
        """A share of the script's peak, once that is known."""
        if self.session is not None and self.options.budget.fraction is not None and before:
            self.session.fixed = int(before * self.options.budget.fraction)

    def plan(self) -> None:
        assert self.session is not None
        session, wholes = self.session, self.wholes
        try:
            with self.working():
                self.plans = from_rank_0(lambda: [session.plan_step(whole) for whole in wholes])
        except BudgetError as error:
            self.stop(error)
        first, *more = self.plans
        self.session.saved, self.session.more = first, tuple(more)
        self.session.trusted, self.session.fixed = True, first.budget
        self.after = self.past_after
        self.attach_anew()

    @contextmanager
    def working(self) -> Iterator[None]:
        """What planning takes is not the script's, and how far it is may be seen."""
        with self.meter.paused(), showing(self.session if is_first() else None):
            yield

    def check(self, peak: int | None, over: bool) -> None:
        assert self.session is not None
        budget = self.plans[0].budget
        peak = largest(peak or 0)
        self.after = max(self.after, peak)
        log.info("measured peak %s, budget %s", format_bytes(peak), format_bytes(budget))
        if peak > budget:
            self.checks += 1
            if self.checks > _CHECKS:
                self.stop(_still_over(peak, budget))
            self.session.learnt += peak - budget + 4096
            self.plan()
            self.count = 0
        elif over and (peak or self.count >= _ROUNDS):  # 0: the script's own profiler ran
            self.phase = Phase.DONE

    def verify(self, call: Call) -> None:
        try:
            self.verifier.compare(call, exact=all(plan.exact for plan in self.plans))
        except DifferenceError as error:
            self.stop(error)

    # What is held.

    def held(self) -> Mapping[str, int]:
        """For a graph that is planned by itself, in the middle of a call."""
        batch = self.round.batch if self.round is not None else {}
        if self.calling is not None and self.round is None:
            batch = given_bytes(self.calling, frozenset())
        return {**self.holdings.by_kind(predict=True), str(Kind.BATCH): sum(batch.values())}


def _unplanned_peak(graph: Graph) -> int:
    return simulate(graph, unplanned(graph)).peak


def _still_over(peak: int, budget: int) -> VerificationError:
    return VerificationError(
        f"measured steps stayed {format_bytes(peak - budget)} over the budget in {_CHECKS} plans",
        floor=peak,
    )
