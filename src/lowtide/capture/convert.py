"""How does AOTAutograd's joint graph become a `Graph`? The only file that knows fx node metadata.

Goes in: the joint forward+backward fx graph, with fake tensors on its nodes. Comes out: `Captured`, the torch-free `Graph`
and the way back from its names to fx nodes. Nothing is lost:

- a tuple-valued call and its getitems become one op with several outputs; elements nobody asked for are outputs too,
  because they are allocated all the same;
- storages are told apart by the fake tensors' own storages, so views, detaches and in-place results share one;
- random ops, mutations, collectives and effects run once, where they were captured; random ops get a companion that notes
  the generator's state, so that a rule can replay them;
- a primal that forward mutates exists, with the value forward saw, until forward ends and no longer;
- user marks (`CheckpointPolicy`) become `rerun=False` (must save) and `keep=False` (must recompute).

Symbolic sizes, constants and script objects weigh nothing; they are `ambient`: always at hand, never planned.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from lowtide.capture import meaning
from lowtide.capture.rows import row_inputs
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value

__all__ = ["Captured", "convert", "hint_bytes", "value_spec"]

FORWARD, BACKWARD = 0, 1
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c", "bool": "b8"}


@dataclass(frozen=True)
class Captured:
    joint: fx.GraphModule
    graph: Graph
    nodes: Mapping[str, fx.Node]
    """The fx call behind each captured op."""
    tensors: Mapping[str, fx.Node]
    """The fx node that is each value: a placeholder, a call, or a getitem of a call."""
    elements: Mapping[str, int | None]
    """For a value that is an element of a call's tuple, its index."""
    ambient: frozenset[fx.Node] = field(default_factory=frozenset)
    given: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The real tensors behind placeholders, as they are now; where they are known. Not to be held on to."""


def convert(
    joint: fx.GraphModule, num_forward_outputs: int, static_inputs: Iterable[int]
) -> Captured:
    """`static_inputs`: positions of the primals that are parameters or buffers."""
    return _Converter(joint, num_forward_outputs, frozenset(static_inputs)).run()


class _Converter:
    """One conversion: what has been built so far."""

    def __init__(
        self, joint: fx.GraphModule, num_forward_outputs: int, static: frozenset[int]
    ) -> None:
        self.joint, self.num_forward, self.static = joint, num_forward_outputs, static
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.outside: list[Outside] = []
        self.nodes: dict[str, fx.Node] = {}
        self.tensors: dict[str, fx.Node] = {}
        self.elements: dict[str, int | None] = {}
        self.ambient: set[fx.Node] = set()
        self.owner: dict[int, str] = {}
        self.backward = meaning.backward_nodes(joint)
        self.mutated = meaning.mutated_primals(joint, num_forward_outputs)
        self.trained = meaning.trained_primals(joint, num_forward_outputs)

    def run(self) -> Captured:
        position = 0
        for node in self.joint.graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node, position)
                position += 1
            elif node.op == "get_attr" or meaning.is_ambient(node):
                self.ambient.add(node)
            elif node.op == "call_function" and node.target is not operator.getitem:
                self.call(node)
        required = tuple(self.required())  # before the values: it marks the gradients among them
        graph = Graph(
            values=tuple(self.values.values()),
            ops=tuple(sorted(self.ops, key=lambda o: o.segment)),
            segments=(Segment("forward"), Segment("backward")),
            outside=tuple(self.outside),
            required=required,
        )
        return Captured(
            self.joint, graph, self.nodes, self.tensors, self.elements, frozenset(self.ambient)
        )

    def placeholder(self, node: fx.Node, position: int) -> None:
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor):
            self.ambient.add(node)
            return
        tangent = meaning.is_tangent(node)
        if tangent:
            kind = Kind.GRADIENT
        elif position in self.static:
            kind = Kind.PARAMETER if position in self.trained else Kind.BUFFER
        else:
            kind = Kind.BATCH
        name = self.value(node.name, node, tensor, kind)
        until = FORWARD if node in self.mutated else BACKWARD
        self.outside.append(
            Outside(name, BACKWARD if tangent else FORWARD, until, owned=not tangent)
        )

    def call(self, node: fx.Node) -> None:
        inputs = tuple(
            dict.fromkeys(
                n.name
                for n in meaning.reads(node)
                if n.name in self.values and n not in self.ambient
            )
        )
        segment = BACKWARD if node in self.backward else FORWARD
        if meaning.is_random(node) and not meaning.has_own_generator(node):
            self.note_generator(node, segment)
        outputs = tuple(self.outputs(node, segment))
        effect = meaning.has_effect(node)
        self.ops.append(
            Op(
                name=node.name,
                target=meaning.target_name(node.target),
                inputs=inputs,
                outputs=outputs,
                segment=segment,
                layer=meaning.layer(node),
                source=meaning.source_line(node),
                rerun=not effect and meaning.may_rerun(node),
                effect=effect,
                rows=tuple(n.name for n in row_inputs(node) if n.name in inputs),
            )
        )
        self.nodes[node.name] = node

    def note_generator(self, node: fx.Node, segment: int) -> None:
        """The state of the generator right before a random op: small, and all a replay needs."""
        name = f"{node.name}.generator"
        size = meaning.generator_bytes(node)
        self.values[name] = Value(name, size, name, Kind.RANDOM, meaning.layer(node), "u8 state")
        self.ops.append(
            Op(
                name=name,
                target="lowtide.generator_state",
                inputs=(),
                outputs=(name,),
                segment=segment,
                layer=meaning.layer(node),
                rerun=False,
            )
        )
        self.nodes[name] = node

    def outputs(self, node: fx.Node, segment: int) -> Iterable[str]:
        made = node.meta.get("val")
        if isinstance(made, torch.Tensor):
            yield self.value(node.name, node, made, _kind(segment))
            return
        if not isinstance(made, (tuple, list)):
            return
        getitems = {u.args[1]: u for u in node.users if u.target is operator.getitem}
        for index, element in enumerate(made):
            if not isinstance(element, torch.Tensor):
                continue
            getitem = getitems.get(index)
            name = getitem.name if getitem is not None else f"{node.name}.{index}"
            self.elements[name] = index
            yield self.value(
                name, getitem if getitem is not None else node, element, _kind(segment)
            )

    def value(self, name: str, node: fx.Node, tensor: torch.Tensor, kind: Kind) -> str:
        key = meaning.storage_key(tensor)
        if key not in self.owner:
            # A view of a call that was merged with an equal one still has that one's storage.
            source = meaning.viewed(node)
            below = self.values.get(source.name) if source is not None else None
            self.owner[key] = below.storage if below is not None else name
        storage = self.owner[key]
        self.values[name] = Value(
            name=name,
            bytes=self.bytes(node, tensor) if storage == name else 0,
            storage=storage,
            kind=kind,
            layer=meaning.layer(node),
            spec=value_spec(tensor),
            keep=not meaning.must_recompute(node),
        )
        self.tensors[name] = node
        return name

    def bytes(self, node: fx.Node, tensor: torch.Tensor) -> int:
        """Of a fresh storage. Ops that write into a part of a copy copy the whole storage below their first argument; fake
        tensors know that only sometimes, depending on what their cache has seen."""
        source = node.args[0] if meaning.copies_storage(node) else None
        if isinstance(source, fx.Node) and source.name in self.values:
            return self.values[self.values[source.name].storage].bytes
        return hint_bytes(tensor)

    def required(self) -> Iterable[Required]:
        outputs, descriptions = meaning.joint_outputs(self.joint)
        for position, node in enumerate(outputs):
            if not isinstance(node, fx.Node) or node.name not in self.values:
                continue
            if position >= self.num_forward:
                self.mark_gradient(node.name)
                yield Required(node.name, BACKWARD)
            elif meaning.is_input_mutation(descriptions[position]):
                yield Required(node.name, FORWARD, FORWARD)
            else:
                yield Required(node.name, FORWARD)

    def mark_gradient(self, name: str) -> None:
        storage = self.values[name].storage
        if self.values[storage].kind is Kind.TEMPORARY:
            self.values[storage] = _with_kind(self.values[storage], Kind.GRADIENT)


def _kind(segment: int) -> Kind:
    return Kind.ACTIVATION if segment == FORWARD else Kind.TEMPORARY


def _with_kind(value: Value, kind: Kind) -> Value:
    return Value(value.name, value.bytes, value.storage, kind, value.layer, value.spec, value.keep)


def hint_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the storage below a (fake) tensor; symbolic sizes at their hints."""
    size = meaning.at_hint(tensor.untyped_storage().nbytes())
    return int(size)


def value_spec(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    word = re.match(r"[a-z]+", dtype)
    short = _SHORT.get(word[0], dtype) if word else dtype
    number = re.search(r"\d+", dtype)
    return f"{short}{number[0] if number and short not in ('b8', dtype) else ''}[{', '.join(str(meaning.at_hint(s)) for s in tensor.shape)}]"
