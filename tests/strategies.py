"""Random training steps and random ways to run them, for every property that must hold for all of them.

`graphs()` makes valid two-segment graphs shaped like training: a forward part with branches, views, several
outputs, workspaces, values of no bytes, effects and ops that run once; a backward part that reads forward values
and upstream gradients; parameters, a batch, a buffer that forward overwrites and tangents from outside; second
makers and other forms of ops as rules add them.

`programs(graph)` makes valid programs: any order the data allows, ops put off, run again, and run for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Value, home_segment
from lowtide.ir.program import Program

__all__ = ["graphs", "programs"]

FORWARD, BACKWARD = 0, 1
# In all choices below the plain case is the one small random numbers give: hypothesis then shrinks to plain graphs.
# Sums of these are exact in floats, so that seconds can be compared with ==.
_SECONDS = (0.0, 0.25, 0.5, 1.0, 1.5)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 14, rules: bool = True, fleeting: bool = True) -> Graph:
    """`max_ops` counts captured ops; rules add a few more. `fleeting`: some values may not be kept."""
    forward = draw(st.integers(1, max(1, max_ops // 2)))
    backward = draw(st.integers(1, max(1, max_ops - forward)))
    graph = _Builder(draw(st.randoms(use_true_random=False)), forward, backward, rules).build()
    if fleeting:
        return graph
    return replace(graph, values=tuple(replace(v, keep=True) for v in graph.values))


class _Builder:
    """A graph as it grows."""

    def __init__(self, rng: Random, forward: int, backward: int, rules: bool) -> None:
        self.rng, self.forward, self.backward, self.rules = rng, forward, backward, rules
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.outside: list[Outside] = []
        self.required: list[Required] = []
        self.perishable: set[str] = set()
        """What backward may not read: the buffer that forward overwrites, and its views."""

    def build(self) -> Graph:
        self.add_outside()
        for _ in range(self.forward):
            self.add_op(FORWARD, [*reversed(self.values)])
        made = [v for v in self.values if v not in {o.value for o in self.outside}]
        self.require(made, FORWARD, 2)
        tangents = [self.outer("tangent", Kind.GRADIENT, since=BACKWARD, owned=False)]
        kept = [v for v in reversed(self.values) if v not in self.perishable and v not in tangents]
        upstream = tangents
        for _ in range(self.backward):
            read = [self.rng.choice(upstream), *self.rng.sample(kept, min(len(kept), 2))]
            upstream = self.add_op(BACKWARD, read, all_of=True) + upstream
        self.require(upstream, BACKWARD, 3)
        if self.rules:
            self.add_rules()
        given = {self.values[r.value].storage for r in self.required}
        self.ops = [replace(o, over=tuple(i for i in o.over if i not in given)) for o in self.ops]
        held = {"optimizer state": self.rng.randint(0, 50)} if self.rng.random() > 0.5 else {}
        return Graph(
            values=tuple(self.values.values()),
            ops=tuple(self.ops),
            outside=tuple(self.outside),
            required=tuple(self.required),
            held=held,
        )

    def add_outside(self) -> None:
        self.outer("batch", Kind.BATCH, owned=self.rng.random() < 0.7)
        for index in range(self.rng.randint(1, 3)):
            self.outer(f"weight_{index}", Kind.PARAMETER)
        if self.rng.random() > 0.7:
            self.values["tied"] = Value("tied", 0, "weight_0", Kind.PARAMETER)
            self.outside.append(Outside("tied"))
        if self.rng.random() > 0.7:
            self.perishable.add(self.outer("buffer", Kind.BUFFER, until=FORWARD))

    def outer(
        self, name: str, kind: Kind, since: int = 0, until: int = 10**9, owned: bool = True
    ) -> str:
        self.values[name] = Value(name, self.rng.randint(0, 40), name, kind, spec="f32[4]")
        self.outside.append(Outside(name, since, until, owned))
        return name

    def add_op(self, segment: int, read: list[str], all_of: bool = False) -> list[str]:
        name = f"{'fb'[segment]}{len(self.ops)}"
        rng = self.rng
        if rng.random() > 0.75:
            return [self.add_view(name, segment, rng.choice(read))]
        inputs = read if all_of else rng.sample(read, min(len(read), rng.randint(1, 3)))
        outputs = [f"{name}.{i}" for i in range(rng.choice((1, 1, 1, 2, 3)))]
        layer = f"layer.{rng.randint(0, 2)}"
        kind = Kind.ACTIVATION if segment == FORWARD else Kind.TEMPORARY
        for output in outputs:
            size, keep = rng.choice((0, rng.randint(1, 64))), rng.random() < 0.9
            self.values[output] = Value(output, size, output, kind, layer, "f32[4]", keep)
        over = self.add_over(inputs, outputs) if rng.random() > 0.6 else ()
        effect = rng.random() > 0.9
        self.ops.append(
            Op(
                name=name,
                target="aten.any.default",
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                segment=segment,
                seconds=rng.choice(_SECONDS),
                workspace=rng.choice((0, 0, rng.randint(1, 32))),
                layer=layer,
                source=f"train.py:{len(self.ops)}",
                signature=f"any({len(inputs)})",
                rerun=not effect and rng.random() < 0.85,
                effect=effect,
                over=over,
            )
        )
        return outputs

    def add_over(self, inputs: list[str], outputs: list[str]) -> tuple[str, ...]:
        """The only output may be written over an input, and over others of that size."""
        made = {o for op in self.ops for o in op.outputs}
        whole = [i for i in inputs if i in made and not self.values[i].is_view]
        if len(outputs) > 1 or not whole:
            return ()
        size = self.values[whole[0]].bytes
        self.values[outputs[0]] = replace(self.values[outputs[0]], bytes=size)
        return tuple(dict.fromkeys(i for i in whole if self.values[i].bytes == size))

    def add_view(self, name: str, segment: int, of: str) -> str:
        storage = self.values[of].storage
        kind = Kind.ACTIVATION if segment == FORWARD else Kind.TEMPORARY
        self.values[name] = Value(name, 0, storage, kind, spec="f32[2, 2]")
        self.ops.append(Op(name, "aten.view.default", (of,), (name,), segment))
        if of in self.perishable:
            self.perishable.add(name)
        return name

    def require(self, made: list[str], segment: int, most: int) -> None:
        for name in self.rng.sample(made, min(len(made), self.rng.randint(1, most))):
            until = self.rng.choice((segment, BACKWARD, 10**9))
            self.required.append(Required(name, segment, until))

    def add_rules(self) -> None:
        """Encode and decode, and inversion: another maker of a forward value."""
        captured = [o for o in self.ops if o.segment == FORWARD]
        for index in range(self.rng.randint(0, 2)):
            op = self.rng.choice(captured)
            target = op.outputs[0]
            if self.values[target].is_view:
                continue
            packed = f"packed_{index}"
            self.values[packed] = Value(packed, self.values[target].bytes // 4, packed)
            self.ops.append(
                Op(
                    f"encode_{index}",
                    "lowtide.pack",
                    (target,),
                    (packed,),
                    rule="encode",
                    of=op.name,
                )
            )
            self.ops.append(
                Op(
                    f"decode_{index}",
                    "lowtide.unpack",
                    (packed,),
                    (target,),
                    seconds=0.5,
                    rule="encode",
                )
            )
        self.add_inversions(captured)
        self.add_forms()

    def add_forms(self) -> None:
        """Other ways to run an op: its outputs in two parts, or all of them from a copy of its first input."""
        for op in [o for o in self.ops if not o.rule and o.rerun and o.inputs]:
            if self.rng.random() < 0.6 or any(self.values[o].is_view for o in op.outputs):
                continue
            forms = []
            if len(op.outputs) > 1:
                forms = [
                    self.form(op, "one", op.outputs[:1]),
                    self.form(op, "rest", op.outputs[1:]),
                ]
            if self.rng.random() < 0.5:
                copy = f"{op.name}.copy"
                self.values[copy] = Value(copy, self.rng.randint(1, 32), copy, Kind.TEMPORARY)
                forms += [
                    self.form(op, "copying", (copy,), op.inputs[:1]),
                    self.form(op, "copied", op.outputs, (copy, *op.inputs[1:])),
                ]
            place = self.ops.index(op) + 1
            self.ops[place:place] = forms

    def form(
        self, op: Op, what: str, outputs: tuple[str, ...], inputs: tuple[str, ...] | None = None
    ) -> Op:
        return replace(
            op,
            name=f"{op.name}.{what}",
            inputs=op.inputs if inputs is None else inputs,
            outputs=outputs,
            seconds=self.rng.choice(_SECONDS),
            workspace=self.rng.choice((0, self.rng.randint(1, 32))),
            rule="form",
            of=op.name,
            over=(),
        )

    def add_inversions(self, captured: list[Op]) -> None:
        for op in captured:
            source = self.values[op.inputs[0]].storage if op.inputs else ""
            made_by = [o for o in captured if source in o.outputs]
            if made_by and not self.values[op.outputs[0]].is_view and self.rng.random() > 0.8:
                self.ops.append(
                    Op(
                        f"invert_{op.name}",
                        "lowtide.invert",
                        op.outputs[:1],
                        (source,),
                        rule="invert",
                    )
                )


@st.composite
def programs(draw: st.DrawFn, graph: Graph) -> Program:
    return _Scheduler(graph, draw(st.randoms(use_true_random=False))).run()


class _Scheduler:
    """A program as it grows. All that was ever made may be read, so whatever this does is valid."""

    def __init__(self, graph: Graph, rng: Random) -> None:
        self.graph, self.rng = graph, rng
        self.ops = [o for o in graph.ops if not graph.is_view(o)]
        self.made: set[str] = set()
        self.stale: set[str] = set()
        """Made, but to be made anew before it is read."""
        self.ran: set[str] = set()
        self.waiting: set[str] = set()
        """Captured ops put off until somebody reads what they make."""
        self.steps: list[list[str]] = [[] for _ in graph.segments]

    def run(self) -> Program:
        for segment in range(len(self.graph.segments)):
            pending = [o for o in self.ops if o.segment == segment and not o.rule]
            while pending:
                # Effects keep their order: one may go only if it is the first of those left.
                effects = [o for o in pending if o.effect]
                op = self.rng.choice(
                    [o for o in pending if self.ready(o, segment) and o not in effects[1:]]
                )
                pending.remove(op)
                if self.rng.random() > 0.75 and self.may_wait(op):
                    self.waiting.add(op.name)
                else:
                    self.make(op, segment, 0)
                self.disturb(segment)
            for required in self.graph.required:
                if required.segment == segment:
                    self.ensure(required.value, segment, 0)
        return Program(tuple(tuple(names) for names in self.steps))

    def disturb(self, segment: int) -> None:
        """Forget something, or run something for nothing."""
        if self.made and self.rng.random() > 0.4:
            self.stale.add(self.rng.choice(sorted(self.made)))
        spare = [o for o in reversed(self.ops) if self.may_run_again(o, segment)]
        if spare and self.rng.random() > 0.8:
            self.append(self.rng.choice(spare), segment)

    def make(self, op: Op, segment: int, depth: int) -> None:
        for value in op.inputs:
            self.ensure(value, segment, depth)
        self.append(op, segment)

    def ensure(self, value: str, segment: int, depth: int) -> None:
        storage = self.graph.storage(value)
        makers = self.graph.makers[storage]
        if not self.readable(value, segment):
            self.make(next(o for o in makers if o.name in self.waiting), segment, depth)
        elif storage in self.stale and depth < 3:
            self.stale.discard(storage)
            again = [o for o in reversed(makers) if self.may_run_again(o, segment)]
            if again:
                self.make(self.rng.choice(again), segment, depth + 1)

    def append(self, op: Op, segment: int) -> None:
        made = [v for v in op.outputs if not self.graph.value[v].is_view]
        self.steps[segment].append(op.name)
        self.ran.add(op.name)
        self.waiting.discard(op.name)
        self.made.update(made)
        self.stale.difference_update(made)

    def ready(self, op: Op, segment: int) -> bool:
        return all(self.readable(v, segment) or self.is_waiting(v) for v in op.inputs)

    def is_waiting(self, value: str) -> bool:
        return any(o.name in self.waiting for o in self.graph.makers[self.graph.storage(value)])

    def readable(self, value: str, segment: int) -> bool:
        found = self.outside(value)
        lasting = found is not None and found.since <= segment <= found.until
        return lasting or self.graph.storage(value) in self.made

    def outside(self, value: str) -> Outside | None:
        outside = self.graph.exists_outside
        return outside.get(value) or outside.get(self.graph.storage(value))

    def may_wait(self, op: Op) -> bool:
        """All it reads lasts to the end of the step."""
        last = len(self.graph.segments) - 1
        return op.rerun and all(o is None or o.until >= last for o in map(self.outside, op.inputs))

    def may_run_again(self, op: Op, segment: int) -> bool:
        return (
            op.rerun
            and (bool(op.rule) or op.name in self.ran)
            and home_segment(self.graph, op, segment)
            and all(self.readable(v, segment) for v in op.inputs)
        )
