"""Which program is the smallest ever found for a graph?

A refused budget names the floor, and a search with a time limit does not find the same floor twice. So the program that was
named is kept between runs: whoever then asks for that budget gets it, or better.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import LowtideError
from lowtide.ir.graph import Graph
from lowtide.ir.json import graph_hash
from lowtide.ir.program import Program
from lowtide.plan.format import read_content, read_program, write_content
from lowtide.sim.memory import simulate

__all__ = ["Floors"]

log = logging.getLogger("lowtide")


@dataclass(frozen=True)
class Floors:
    folder: Path

    def get(self, graph: Graph) -> Program | None:
        path = self.path(graph)
        if not path.exists():
            return None
        try:
            return read_program(graph, read_content(path).get("program"))
        except LowtideError as error:
            # Damaged, or of another version: found again where it matters.
            log.debug("the smallest program in %s is not used: %s", path, error)
            return None

    def put(self, graph: Graph, program: Program) -> Program:
        """The smallest program known now."""
        known = self.get(graph)
        if known is not None and simulate(graph, known).peak <= simulate(graph, program).peak:
            return known
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            content = {"lowtide": "program", "program": [list(s) for s in program.steps]}
            write_content(self.path(graph), content)
        except OSError as error:
            log.warning("cannot keep the smallest program found in %s: %s", self.folder, error)
        return program

    def clear(self) -> int:
        """How many programs were removed."""
        found = list(self.folder.glob("*.json"))
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def path(self, graph: Graph) -> Path:
        return self.folder / f"{graph_hash(graph)[:32]}.json"
