"""How does a test write down a training step in a few lines, without torch?

    step = Step()
    x = step.batch("x", 100)
    w = step.parameter("w", 10)
    y = step.op("fc", "aten.mm.default", [x, w], 100, seconds=5, saves=[x, w])
    z = step.op("act", "aten.tanh.default", [y], 100)
    graph = step.graph(z)

An op makes one value of its own name (and `extra` ones). Its backward op, `fc.backward`, is written by `graph`: it reads the
gradient of the output and the values in `saves` (default: the output itself, as tanh does), and makes the gradients of all
inputs that need one, `d.x`. Where a value has several readers the gradients are added. Gradients of parameters are
required at the end, gradients of the batch are not made, and the gradients of the outputs arrive from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.ir.check import check_graph, check_program
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Value, home_segment
from lowtide.ir.program import Program
from lowtide.ir.storages import fold
from lowtide.sim.check import check_kept
from lowtide.sim.memory import Timeline, simulate

__all__ = [
    "ADD",
    "BACKWARD",
    "FORWARD",
    "MM",
    "SIN",
    "TANH",
    "Step",
    "assert_valid",
    "chain",
    "lstm",
    "resnet",
    "run",
]

FORWARD, BACKWARD = 0, 1
ADD, MM, SIN, TANH = "aten.add.Tensor", "aten.mm.default", "aten.sin.default", "aten.tanh.default"


@dataclass(frozen=True)
class _Forward:
    op: Op
    saves: tuple[str, ...]
    backward_seconds: float


@dataclass
class Step:
    """A training step as it is written down."""

    values: dict[str, Value] = field(default_factory=dict)
    outside: list[Outside] = field(default_factory=list)
    forward: list[_Forward] = field(default_factory=list)
    makers: list[Op] = field(default_factory=list)

    def batch(self, name: str, bytes: int, until: int = 10**9) -> str:
        return self._arrives(name, bytes, Kind.BATCH, until)

    def parameter(self, name: str, bytes: int) -> str:
        return self._arrives(name, bytes, Kind.PARAMETER, 10**9)

    def _arrives(self, name: str, bytes: int, kind: Kind, until: int) -> str:
        self.outside.append(Outside(name, FORWARD, until))
        return self._value(name, bytes, kind)

    def _value(
        self, name: str, bytes: int, kind: Kind, storage: str = "", keep: bool = True
    ) -> str:
        assert name not in self.values, f"two values named {name}"
        self.values[name] = Value(name, bytes, storage or name, kind, keep=keep)
        return name

    def op(
        self,
        name: str,
        target: str,
        inputs: Sequence[str],
        bytes: int,
        seconds: float = 1.0,
        *,
        saves: Sequence[str] | None = None,
        extra: Mapping[str, int] | None = None,
        backward_seconds: float | None = None,
        workspace: int = 0,
        rerun: bool = True,
        effect: bool = False,
        keep: bool = True,
    ) -> str:
        for made, size in {name: bytes, **(extra or {})}.items():
            self._value(made, size, Kind.ACTIVATION, keep=keep)
        op = Op(
            name,
            target,
            tuple(inputs),
            (name, *(extra or ())),
            FORWARD,
            seconds,
            workspace,
            rerun=rerun and not effect,
            effect=effect,
        )
        later = 2 * seconds if backward_seconds is None else backward_seconds
        self.forward.append(_Forward(op, tuple([name] if saves is None else saves), later))
        return name

    def view(self, name: str, of: str) -> str:
        """A view op; it and its backward cost nothing."""
        self._value(name, 0, Kind.ACTIVATION, storage=self.values[of].storage)
        self.forward.append(
            _Forward(Op(name, "aten.view.default", (of,), (name,), FORWARD), (), 0.0)
        )
        return name

    def maker(
        self,
        name: str,
        rule: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        **rest: float | str,
    ) -> str:
        """Another op that makes existing values (or new ones, declared with `fresh`)."""
        self.makers.append(
            Op(name, f"lowtide.{rule}", tuple(inputs), tuple(outputs), rule=rule, **rest)  # type: ignore[arg-type]
        )
        return name

    def fresh(self, name: str, bytes: int) -> str:
        """A value that only a rule's op makes."""
        return self._value(name, bytes, Kind.ACTIVATION)

    def graph(self, *outputs: str) -> Graph:
        """Writes the backward part. Outputs (default: the last op's) belong to the caller after forward."""
        ends = outputs or (self.forward[-1].op.name,)
        return _Backward(self, ends).graph()


class _Backward:
    """The backward part as it is written, from the last forward op to the first."""

    def __init__(self, step: Step, ends: Sequence[str]) -> None:
        self.ends = ends
        self.step = step
        self.values = dict(step.values)
        self.outside = list(step.outside)
        self.ops: list[Op] = []
        self.gradient: dict[str, str] = {}
        for end in dict.fromkeys(self.values[e].storage for e in ends):
            name = self.new(f"tangent.{end}", end)
            self.outside.append(Outside(name, BACKWARD, owned=False))
            self.gradient[end] = name

    def graph(self) -> Graph:
        for entry in reversed(self.step.forward):
            self.backward(entry)
        parameters = [o.value for o in self.step.outside if self.kind(o.value) is Kind.PARAMETER]
        wanted = [self.gradient[p] for p in parameters if p in self.gradient]
        forward = [entry.op for entry in self.step.forward]
        return Graph(
            values=tuple(self.values.values()),
            ops=(*forward, *self.ops, *self.step.makers),
            outside=tuple(self.outside),
            required=(
                *(Required(end, FORWARD, FORWARD) for end in self.ends),
                *(Required(name, BACKWARD) for name in wanted),
            ),
        )

    def kind(self, name: str) -> Kind:
        return self.values[name].kind

    def new(self, name: str, like: str) -> str:
        self.values[name] = Value(name, self.values[like].bytes, name, Kind.TEMPORARY)
        return name

    def backward(self, entry: _Forward) -> None:
        op = entry.op
        if all(self.values[o].is_view for o in op.outputs):
            return
        arriving = [self.gradient[o] for o in op.outputs if o in self.gradient]
        inputs = dict.fromkeys(self.values[v].storage for v in op.inputs)
        differentiable = [v for v in inputs if self.kind(v) is not Kind.BATCH]
        if not arriving or not differentiable:
            return
        made = [self.new(f"d.{v}.{op.name}", v) for v in differentiable]
        self.ops.append(
            Op(
                f"{op.name}.backward",
                f"{op.target}.backward",
                (*arriving, *entry.saves),
                tuple(made),
                BACKWARD,
                entry.backward_seconds,
            )
        )
        for value, gradient in zip(differentiable, made):
            self.add(value, gradient)

    def add(self, value: str, gradient: str) -> None:
        before = self.gradient.get(value)
        if before is None:
            self.gradient[value] = gradient
            return
        total = self.new(f"{gradient}+", value)
        self.ops.append(
            Op(f"{gradient}.add", "aten.add.Tensor", (before, gradient), (total,), BACKWARD, 0.1)
        )
        self.gradient[value] = total


# Ready-made steps.


def chain(length: int, bytes: int = 100, seconds: float = 1.0) -> Graph:
    """A uniform line of ops whose gradients read the op's input."""
    step = Step()
    value = step.batch("x", 0)
    weight = step.parameter("w", 0)
    value = step.op("f0", "aten.mul.Tensor", [value, weight], bytes, seconds, saves=[value])
    for i in range(1, length):
        value = step.op(f"f{i}", "aten.sin.default", [value], bytes, seconds, saves=[value])
    return step.graph(value)


def lstm(steps: int, batch: int = 8, width: int = 16) -> Graph:
    """One unrolled LSTM layer of pointwise ops, whose outputs are stacked and fed to a linear layer."""
    step = Step()
    size = 4 * batch * width
    wx, wh = step.parameter("wx", 16 * width * width), step.parameter("wh", 16 * width * width)
    h, c = step.batch("h0", size), step.batch("c0", size)
    outputs = []
    for t in range(1, steps + 1):
        x = step.batch(f"x{t}", size)
        a = step.op(f"a{t}", "aten.mm.default", [x, wx], 4 * size, 50, saves=[x, wx])
        b = step.op(f"b{t}", "aten.mm.default", [h, wh], 4 * size, 50, saves=[h, wh])
        z = step.op(f"z{t}", "aten.add.Tensor", [a, b], 4 * size, saves=[])
        i, f, g, o = (
            step.op(f"{gate}{t}", target, [step.view(f"{gate}{t}.part", z)], size)
            for gate, target in zip(
                "ifgo", ["aten.sigmoid.default"] * 2 + ["aten.tanh.default", "aten.sigmoid.default"]
            )
        )
        fc = step.op(f"fc{t}", "aten.mul.Tensor", [f, c], size, saves=[f, c])
        ig = step.op(f"ig{t}", "aten.mul.Tensor", [i, g], size, saves=[i, g])
        c = step.op(f"c{t}", "aten.add.Tensor", [fc, ig], size, saves=[])
        tc = step.op(f"tc{t}", "aten.tanh.default", [c], size)
        h = step.op(f"h{t}", "aten.mul.Tensor", [o, tc], size, saves=[o, tc])
        outputs.append(h)
    stacked = step.op("stacked", "aten.cat.default", outputs, steps * size, saves=[])
    weight = step.parameter("w", 4 * width * width)
    return step.graph(
        step.op(
            "out", "aten.mm.default", [stacked, weight], steps * size, 50, saves=[stacked, weight]
        )
    )


RESNET_152 = ((3, 64, 56), (8, 128, 28), (36, 256, 14), (3, 512, 7))


def resnet(
    batch: int, stages: Iterable[tuple[int, int, int]] = RESNET_152, image: int = 224
) -> Graph:
    """A bottleneck ResNet with torch's own saves: convolutions and batch norms save their input, ReLU its output.

    `stages`: blocks, width of the bottleneck, side of the feature map. float32.
    """
    step = Step()
    net = _Resnet(step, batch)
    side = image // 2
    x = net.unit("stem", step.batch("image", 4 * batch * 3 * image * image), 3, 64, side, 7)
    channels, side = 64, side // 2
    pooled = 4 * batch * channels * side * side
    x = step.op(
        "pool",
        "aten.max_pool2d_with_indices.default",
        [x],
        pooled,
        pooled * 9e-9,
        saves=[x, "pool.indices"],
        extra={"pool.indices": 2 * pooled},
    )
    for stage, (blocks, width, side) in enumerate(stages):
        for block in range(blocks):
            x = net.block(f"s{stage}b{block}", x, channels, width, side)
            channels = 4 * width
    mean = step.op("mean", "aten.mean.dim", [x], 4 * batch * channels, 1e-3, saves=[])
    weight = step.parameter("fc.w", 4 * channels * 1000)
    return step.graph(
        step.op(
            "fc", "aten.addmm.default", [mean, weight], 4 * batch * 1000, 1e-3, saves=[mean, weight]
        )
    )


@dataclass(frozen=True)
class _Resnet:
    step: Step
    batch: int

    def block(self, name: str, x: str, channels: int, width: int, side: int) -> str:
        y = self.unit(f"{name}.1", x, channels, width, side, 1)
        y = self.unit(f"{name}.2", y, width, width, side, 3)
        y = self.normed(f"{name}.3", y, width, 4 * width, side, 1)
        if channels != 4 * width:
            x = self.normed(f"{name}.down", x, channels, 4 * width, side, 1)
        size = self.size(4 * width, side)
        added = self.step.op(f"{name}.add", "aten.add.Tensor", [y, x], size, size * 1e-9, saves=[])
        return self.relu(f"{name}.relu", added, size)

    def unit(self, name: str, x: str, before: int, after: int, side: int, kernel: int) -> str:
        y = self.normed(name, x, before, after, side, kernel)
        return self.relu(f"{name}.relu", y, self.size(after, side))

    def normed(self, name: str, x: str, before: int, after: int, side: int, kernel: int) -> str:
        size = self.size(after, side)
        weight = self.step.parameter(f"{name}.w", 4 * before * after * kernel * kernel)
        work = size * before * kernel * kernel * 1e-11
        y = self.step.op(
            f"{name}.conv", "aten.convolution.default", [x, weight], size, work, saves=[x, weight]
        )
        scale = self.step.parameter(f"{name}.scale", 4 * after)
        statistics = f"{name}.statistics"
        return self.step.op(
            f"{name}.norm",
            "aten._native_batch_norm_legit_functional.default",
            [y, scale],
            size,
            size * 2e-9,
            saves=[y, scale, statistics],
            extra={statistics: 8 * after},
        )

    def relu(self, name: str, x: str, size: int) -> str:
        return self.step.op(name, "aten.relu.default", [x], size, size * 1e-9)

    def size(self, channels: int, side: int) -> int:
        return 4 * self.batch * channels * side * side


# Judging a program.


def run(graph: Graph, program: Program) -> Timeline:
    """What the simulator says of a program that passes every check there is."""
    check_graph(graph)
    check_program(graph, program)
    assert_valid(graph, program)
    timeline = simulate(graph, program)
    check_kept(timeline)
    return timeline


def assert_valid(graph: Graph, program: Program) -> None:
    """A second opinion, independent of `ir/check.py`. Runs the program on names: every op reads what exists, runs where and as often as it may; all required is made."""
    folded = fold(graph)
    made: dict[str, int] = {}
    assert len(program.steps) == len(graph.segments)
    for segment, names in enumerate(program.steps):
        for name in names:
            op = graph.op[name]
            assert not graph.is_view(op), f"view {name} is listed"
            assert home_segment(graph, op, segment), f"{name} runs in segment {segment}"
            assert op.rerun or op.segment == segment, f"{name} runs late"
            for storage in folded.reads[name]:
                assert _there(graph, made, storage, segment), f"{name} reads {storage}: not there"
            made.update(dict.fromkeys(folded.makes[name], segment))
        for required in graph.required:
            storage = graph.storage(required.value)
            if required.segment == segment:
                assert _there(graph, made, storage, segment), f"{storage} is required"
    for op in graph.ops:
        times = program.counts.get(op.name, 0)
        assert op.rerun or times <= 1, f"{op.name} runs {times} times"
        assert not op.effect or times == 1, f"{op.name} runs {times} times"


def _there(graph: Graph, made: dict[str, int], storage: str, segment: int) -> bool:
    outside = graph.exists_outside.get(storage)
    if outside is not None:
        return outside.since <= segment <= outside.until
    return storage in made
