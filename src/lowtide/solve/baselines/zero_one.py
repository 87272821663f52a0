"""What do the papers' 0-1 programs share? Variables, rows, one of them the peak, and HiGHS behind scipy.

Goes in: variables and rows. Comes out: a value for each variable: the cheapest within a number of bytes or, where nothing is
within it, the one with the smallest peak. A row of bytes says that a sum is at most the peak, so both questions are asked of the
same rows.

Solvers think in floats: a billion bytes times a variable that is 0.000001 off are a thousand bytes. So bytes are counted in
units, their greatest common divisor or a ten-thousandth of the room, sizes rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import GraphError

__all__ = ["ONE", "SECONDS", "ZERO", "Bytes", "Terms", "ZeroOne"]

SECONDS = 60.0
"""Solving ends after so long, with the best found so far."""
MOST_VARIABLES = 20_000
_UNITS = 10_000
_INFEASIBLE = 2

_PEAK, ZERO, ONE = 0, 1, 2
"""The first variables: the peak, and two that are known."""

Terms = list[tuple[int, float]]
"""A sum of variables, each with a factor."""


class Bytes:
    """Counts bytes in units."""

    def __init__(self, sizes: Iterable[int], room: int) -> None:
        self.unit = max(1, math.gcd(*sizes), room // _UNITS)
        self.room = max(0, room) // self.unit

    def __call__(self, size: int) -> int:
        return -(-size // self.unit)


class ZeroOne:
    """A 0-1 program as it is written down."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.low: list[float] = [0.0, 0.0, 1.0]
        self.high: list[float] = [math.inf, 0.0, 1.0]
        self.whole: list[int] = [0, 0, 0]
        self.rows: list[Terms] = []
        self.limits: list[float] = []

    def variable(self, whole: bool = True) -> int:
        """A new one between 0 and 1."""
        if len(self.low) >= MOST_VARIABLES:
            raise GraphError(
                f"the 0-1 program of {self.name} has more than {MOST_VARIABLES} variables for this graph: it is for small "
                "graphs; use the solver 'auto'"
            )
        self.low.append(0.0)
        self.high.append(1.0)
        self.whole.append(int(whole))
        return len(self.low) - 1

    def amount(self) -> int:
        """A new one that may be any number from 0 on."""
        variable = self.variable(whole=False)
        self.high[variable] = math.inf
        return variable

    def at_most(self, terms: Terms, limit: float = 0.0) -> None:
        self.rows.append(terms)
        self.limits.append(limit)

    def exactly(self, terms: Terms, value: float) -> None:
        self.at_most(terms, value)
        self.at_most([(variable, -factor) for variable, factor in terms], -value)

    def within_peak(self, terms: Terms) -> None:
        """A sum of bytes that exist at once."""
        self.at_most([*terms, (_PEAK, -1.0)])

    def solve(self, costs: Terms, room: int) -> NDArray[np.bool_]:
        """Which variables are 1 in the cheapest solution within the room; failing that, in the one with the smallest peak."""
        found = self._solve(costs, room)
        if found is None:
            found = self._solve([(_PEAK, 1.0)], math.inf)
        if found is None:
            raise GraphError(f"the 0-1 program of {self.name} has no solution for this graph")
        return found > 0.5

    def _solve(self, costs: Terms, room: float) -> NDArray[np.float64] | None:
        # Takes half a second to import, and only these baselines need it.
        from scipy.optimize import Bounds, LinearConstraint, milp

        high = [room, *self.high[1:]]
        answer: Any = milp(
            self._vector(costs),
            integrality=np.array(self.whole),
            bounds=Bounds(np.array(self.low), np.array(high)),
            constraints=LinearConstraint(self._matrix(), -np.inf, np.array(self.limits)),
            options={"time_limit": SECONDS, "mip_rel_gap": 0.0},
        )
        if answer.x is None and answer.status != _INFEASIBLE:
            raise GraphError(
                f"the 0-1 program of {self.name}, {len(self.low)} variables, has no answer after {SECONDS:.0f} s "
                f"({answer.message}); use the solver 'auto'"
            )
        found: NDArray[np.float64] | None = answer.x
        return found

    def _vector(self, costs: Terms) -> NDArray[np.float64]:
        vector = np.zeros(len(self.low))
        for variable, cost in costs:
            vector[variable] += cost
        # HiGHS stops at absolute tolerances: a step of microseconds is as good as one of seconds.
        return vector / (vector.max() or 1.0)

    def _matrix(self) -> Any:
        from scipy.sparse import csc_array

        entries = [(row, v, f) for row, terms in enumerate(self.rows) for v, f in terms]
        rows, columns, factors = zip(*entries) if entries else ((), (), ())
        shape = (len(self.rows), len(self.low))
        return csc_array((np.array(factors, np.float64), (rows, columns)), shape=shape)
