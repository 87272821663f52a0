"""How does a `Program` become the forward and backward that AOTAutograd runs?

Goes in: what was captured and a program. Comes out: two fx modules. A new joint graph is written with one node for each time
an op runs, in the program's order, forward instances before backward ones; then PyTorch's own extraction splits it, because
it knows the calling convention (order of saved tensors, symbol bindings, version checks, tokens). Nodes are tagged so that
nothing moves across the split, and fx's generated code drops every variable after its last use, which is exactly when the
program says a storage goes.

Views are taken where they are read, from the copy of the storage that is there.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch.fx.experimental.proxy_tensor import is_sym_node

from lowtide.capture import forms, meaning
from lowtide.capture.convert import BACKWARD, FORWARD, Captured
from lowtide.capture.forms import Form, form_of
from lowtide.execute import again
from lowtide.ir.graph import Graph, Op
from lowtide.ir.program import Program
from lowtide.rules.base import REMAKES
from lowtide.sim.memory import written_over

__all__ = ["ENCODES", "lower"]

ENCODES = "lowtide encodes"
"""In a node's `meta`: it makes something that only rules know."""
_TAGS = ("must_be_in_forward", "must_be_in_backward")


def lower(
    captured: Captured, graph: Graph, program: Program, num_forward_outputs: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """`graph` is the captured one, possibly with more makers; `program` is for it."""
    return _Lowering(captured, graph).run(program, num_forward_outputs)


class _Lowering:
    """The new joint graph as it is written."""

    def __init__(self, captured: Captured, graph: Graph) -> None:
        self.captured, self.graph = captured, graph
        self.new = fx.Graph()
        self.segment = FORWARD
        self.now: dict[str, fx.Node] = {}
        """The newest copy of each storage."""
        self.views: dict[str, tuple[int, fx.Node, fx.Node]] = {}
        """Views taken: (segment, copy of the storage it was taken from, node)."""
        self.ambient: dict[fx.Node, Any] = {}
        self.waiting = [n for n in captured.joint.graph.nodes if n in captured.ambient]
        self.ran: set[str] = set()
        self.returned = {graph.storage(r.value) for r in graph.required}

    def run(
        self, program: Program, num_forward_outputs: int
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        for node in self.captured.joint.graph.find_nodes(op="placeholder"):
            copy = self.new.placeholder(node.target)
            copy.meta = node.meta
            self.now[node.name] = self.ambient[node] = copy
        outputs, _ = meaning.joint_outputs(self.captured.joint)
        made: list[Any] = []
        wanted = (outputs[:num_forward_outputs], outputs[num_forward_outputs:])
        over = written_over(self.graph, program)
        for segment, names in enumerate(program.steps):
            self.segment = segment
            for name, storage in zip(names, over[segment], strict=True):
                self.run_op(self.graph.op[name], storage)
            made += [self.resolve(o) if isinstance(o, fx.Node) else o for o in wanted[segment]]
        self.finish(made)
        return self.split(num_forward_outputs)

    def finish(self, outputs: list[Any]) -> None:
        (old,) = self.captured.joint.graph.find_nodes(op="output")
        new = self.new.output(outputs)
        new.meta = dict(old.meta)

    def split(self, num_forward_outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = fx.GraphModule(self.captured.joint, self.new)
        values, sizes, opaque = self.saved(num_forward_outputs)
        arguments: dict[str, Any] = {"num_fwd_outputs": num_forward_outputs}
        if (
            "saved_opaque_nodes"
            in inspect.signature(partitioners._extract_fwd_bwd_modules).parameters
        ):
            arguments["saved_opaque_nodes"] = opaque
        static = [n for n in values if n.op == "placeholder"]
        arguments["static_lifetime_input_nodes"] = torch.utils._ordered_set.OrderedSet(static)
        return partitioners._extract_fwd_bwd_modules(joint, values, sizes, **arguments)

    def saved(self, num_forward_outputs: int) -> tuple[list[fx.Node], list[fx.Node], list[fx.Node]]:
        """What backward reads that forward, or the caller before it, made: tensors, symbolic sizes, script objects."""
        (output,) = self.new.find_nodes(op="output")
        needed: dict[fx.Node, None] = {}
        for node in self.new.nodes:
            if node.meta.get("partitioner_tag") == _TAGS[BACKWARD] and node.op == "call_function":
                needed.update(dict.fromkeys(node.all_input_nodes))
        needed.update(
            (n, None)
            for n in output.args[0][num_forward_outputs:]
            if isinstance(n, fx.Node)  # type: ignore[union-attr,index]
        )
        before = [
            n
            for n in self.new.nodes
            if n in needed
            and n.meta.get("partitioner_tag") != _TAGS[BACKWARD]
            and n.op != "get_attr"
            and not meaning.is_tangent(n)
        ]
        sizes = [n for n in before if is_sym_node(n)]
        tensors = [n for n in before if isinstance(n.meta.get("val"), torch.Tensor)]
        opaque = [n for n in before if n not in set(sizes) and n not in set(tensors)]
        return tensors, [n for n in sizes if not _only_asserts(n)], opaque

    # Writing nodes.

    def run_op(self, op: Op, over: str = "") -> None:
        """`over`: the storage that its output is written over, if any."""
        node = self.captured.nodes[op.of or op.name]
        if op.target == "lowtide.generator_state":
            self.put(
                op, self.call(again.generator_state, (meaning.device(node),), {}, _state_meta(node))
            )
            return
        form = form_of(self.captured, op)
        assert form is not None, f"{op.name} was planned, but has no form"
        if op.name in self.ran and form.target is node.target:
            form = again.again(node, form)
        elif meaning.is_random(node) and op.rule != "replay" and op.target not in REMAKES:
            form = Form(again.draw, (form.target, *form.args), form.kwargs)
        if over:
            self.own(over)
            form = forms.written_over(form, self.captured.tensors.get(over))
        args, kwargs = form.arguments(self.resolve, lambda added: self.now[added.name])
        if op.rule == "replay":
            noted = (form.target, meaning.device(node), self.now[op.inputs[-1]])
            form, args = Form(again.replay, (), {}), (*noted, *args)
        meta = self.meta(op, node, form)
        if not all(name in self.captured.graph.value for name in op.outputs):
            meta = {**meta, ENCODES: True}
        call = self.call(form.target, args, kwargs, meta)
        skipped = meaning.statistics_outputs(node) if op.name in self.ran else frozenset()
        self.put(op, call, skipped, form.elements)
        self.ran.add(op.name)

    def own(self, storage: str) -> None:
        """Before it is written over: what is saved for backward may be wanted for another backward."""
        saved = self.now[storage]
        if saved.meta.get("partitioner_tag") != _TAGS[self.segment]:
            self.now[storage] = self.call(again.owned, (saved,), {}, saved.meta)

    def meta(self, op: Op, node: fx.Node, form: Form) -> dict[str, Any]:
        """The captured call's; of what only rules make, what the form makes of fake tensors."""
        if op.target in REMAKES:
            return self.captured.tensors[op.outputs[0]].meta
        if op.outputs[0] in self.captured.graph.value and not form.elements:
            return node.meta
        original = next(n for n in form.args if isinstance(n, fx.Node)).meta
        with original["val"].fake_mode:
            return {**original, "val": form.call(lambda node: node.meta["val"])}

    def put(
        self,
        op: Op,
        call: fx.Node,
        skipped: frozenset[int] = frozenset(),
        added: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Note the op's outputs as the newest copies. The caller gets the first copy of what it gets; `skipped` are
        elements that a second run does not really make, `added` those that only rules know."""
        for name in op.outputs:
            if op.name in self.ran and name in self.returned:
                continue
            if self.captured.elements.get(name) in skipped:
                continue
            index = self.captured.elements.get(name, added.get(name))
            made = call
            if index is not None and op.target not in REMAKES:
                made = self.new.call_function(operator.getitem, (call, index))
                known = self.captured.tensors[name].meta if name not in added else {}
                made.meta = self.tagged(known)
                if not isinstance(made.meta.get("val"), torch.Tensor):
                    made.meta["val"] = call.meta["val"][index]
            if self.graph.value[name].is_view:
                self.views[name] = (self.segment, self.now[self.graph.storage(name)], made)
            else:
                self.now[name] = made
        if self.waiting and self.segment == FORWARD:
            self.settle_ambient()

    def call(self, target: Any, args: Any, kwargs: Any, meta: dict[str, Any]) -> fx.Node:
        node = self.new.call_function(target, tuple(args), kwargs)
        node.meta = self.tagged(meta)
        return node

    def tagged(self, meta: dict[str, Any]) -> dict[str, Any]:
        return {**meta, "partitioner_tag": _TAGS[self.segment]}

    def mapped(self, arguments: Any) -> Any:
        return fx.map_arg(arguments, self.resolve)

    def resolve(self, node: fx.Node) -> Any:
        """The new graph's node for a node of the captured one, as it stands now."""
        if node in self.captured.ambient:
            return self.ambient_node(node)
        return self.tensor(node.name)

    def tensor(self, name: str) -> fx.Node:
        storage = self.graph.storage(name)
        if storage == name:
            return self.now[name]
        base = self.now[storage]
        taken = self.views.get(name)
        if taken is not None and taken[0] == self.segment and taken[1] is base:
            return taken[2]
        self.take_view(name)
        return self.views[name][2]

    def take_view(self, name: str) -> None:
        op = self.graph.makers[name][0]
        node = self.captured.nodes[op.name]
        call = self.call(
            node.target, self.mapped(node.args), self.mapped(dict(node.kwargs)), node.meta
        )
        self.put(op, call)

    # Sizes and constants.

    def ambient_node(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, (int, float, bool)):
            return value
        if node.op == "get_attr":
            copy = self.new.get_attr(str(node.target))
            copy.meta = dict(node.meta)
            return copy
        if node not in self.ambient:
            copy = self.new.call_function(
                node.target, self.mapped(node.args), self.mapped(dict(node.kwargs))
            )
            copy.meta = dict(node.meta)
            if self.segment == BACKWARD:
                copy.meta["partitioner_tag"] = _TAGS[BACKWARD]
            self.ambient[node] = copy
        return self.ambient[node]

    def settle_ambient(self) -> None:
        """Write down sizes as soon as what they are read from exists, so that backward can rely on them."""
        still = []
        for node in self.waiting:
            if node.op == "call_function" and all(self.exists(n) for n in node.all_input_nodes):
                self.ambient_node(node)
            elif node.op == "call_function":
                still.append(node)
        self.waiting = still

    def exists(self, node: fx.Node) -> bool:
        if node in self.captured.ambient:
            return node.op == "get_attr" or node in self.ambient
        return node.name in self.graph.value and self.graph.storage(node.name) in self.now


def _state_meta(node: fx.Node) -> dict[str, Any]:
    fake = (
        next(n for n in node.meta["val"] if isinstance(n, torch.Tensor))
        if isinstance(node.meta["val"], (tuple, list))
        else node.meta["val"]
    )
    with fake.fake_mode:
        return {"val": torch.empty(meaning.generator_bytes(node), dtype=torch.uint8, device="cpu")}


def _only_asserts(node: fx.Node) -> bool:
    return (
        bool(partitioners._is_assert_only_symbool(node))
        if hasattr(partitioners, "_is_assert_only_symbool")
        else False
    )
