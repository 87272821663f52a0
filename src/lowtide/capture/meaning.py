"""What does an fx node of the joint graph mean? One small answer per function.

Everything here reads PyTorch's own metadata: partition tags, descriptors, schemas, tags, policies. It is the part that
follows PyTorch releases, kept apart from the conversion, which does not change with them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._functorch import partitioners
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.utils.checkpoint import CheckpointPolicy

__all__ = [
    "at_hint",
    "backward_nodes",
    "copies_storage",
    "device",
    "generator_bytes",
    "has_effect",
    "is_ambient",
    "is_input_mutation",
    "is_random",
    "is_tangent",
    "joint_outputs",
    "layer",
    "may_rerun",
    "must_recompute",
    "mutated_primals",
    "placeholders_of",
    "reads",
    "source_line",
    "statistics_outputs",
    "storage_key",
    "target_name",
    "trained_primals",
    "updates_statistics",
    "viewed",
]

_COLLECTIVES = ("_c10d_functional", "c10d_functional", "c10d", "fsdp", "symm_mem")
_BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._batch_norm_with_update_functional.default,
)
_COPY_STORAGE = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        "copy", "select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter",
    )
)  # fmt: skip
RUNNING_STATISTICS = (3, 4)
_TRAINING = 5


def is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def joint_outputs(joint: fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """The joint graph's outputs and AOTAutograd's description of each."""
    (node,) = joint.graph.find_nodes(op="output")
    outputs = pytree.arg_tree_leaves(*node.args)
    described = node.meta.get("desc")
    descriptions = list(described) if described is not None else [None] * len(outputs)
    return outputs, descriptions


def is_input_mutation(description: Any) -> bool:
    return type(description).__name__ == "InputMutationAOTOutput"


def placeholders_of(
    joint: fx.GraphModule, inputs: Mapping[int, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What was passed at each of these positions, by the name of the placeholder that AOTAutograd says it became."""
    found = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        position = getattr(node.meta.get("desc"), "idx", None)
        if not is_tangent(node) and position in inputs:
            found[node.name] = inputs[position]
    return found


def backward_nodes(joint: fx.GraphModule) -> set[fx.Node]:
    """Nodes that run in backward: what needs a tangent, and what AOTAutograd says belongs there."""
    found: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if (
            is_tangent(node)
            or node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")
            or (node.op == "call_function" and any(n in found for n in node.all_input_nodes))
        ):
            found.add(node)
    return found


def mutated_primals(joint: fx.GraphModule, num_forward_outputs: int) -> set[fx.Node]:
    """Primals that hold another value once forward is over."""
    _outputs, descriptions = joint_outputs(joint)
    described = {
        repr(d.mutated_input) for d in descriptions[:num_forward_outputs] if is_input_mutation(d)
    }
    found = {
        p for p in joint.graph.find_nodes(op="placeholder") if repr(p.meta.get("desc")) in described
    }
    for node in joint.graph.nodes:
        if (
            node.op == "call_function"
            and is_mutable(node)
            and not partitioners._must_be_in_backward(node)
        ):
            target = node.args[0] if node.args else None
            if isinstance(target, fx.Node) and target.op == "placeholder":
                found.add(target)
    return found


def trained_primals(joint: fx.GraphModule, num_forward_outputs: int) -> set[int]:
    """Positions of the primals that backward makes a gradient for: it has one output for each primal, in order."""
    outputs, _ = joint_outputs(joint)
    return {i for i, o in enumerate(outputs[num_forward_outputs:]) if isinstance(o, fx.Node)}


def is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def copies_storage(node: fx.Node) -> bool:
    """The result has a storage as large as that of the first argument, whatever part of it the argument shows."""
    return node.target in _COPY_STORAGE


def reads(node: fx.Node) -> list[fx.Node]:
    """The nodes whose contents the call's result depends on: all its inputs, except running statistics that it only updates."""
    if updates_statistics(node):
        statistics = {node.args[i] for i in RUNNING_STATISTICS}
        return [n for n in node.all_input_nodes if n not in statistics]
    return list(node.all_input_nodes)


def updates_statistics(node: fx.Node) -> bool:
    """A batch norm in training mode: its output does not depend on the running statistics it updates."""
    return (
        node.target in _BATCH_NORMS and len(node.args) > _TRAINING and node.args[_TRAINING] is True
    )


def statistics_outputs(node: fx.Node) -> frozenset[int]:
    """Positions of the updated running statistics among a batch norm's outputs: the last two."""
    if not updates_statistics(node):
        return frozenset()
    count = len(node.meta["val"])
    return frozenset((count - 2, count - 1))


def is_ambient(node: fx.Node) -> bool:
    """A call that makes no tensor: a symbolic size, a script object."""
    if node.op != "call_function":
        return False
    value = node.meta.get("val")
    return is_sym_node(node) or isinstance(value, (int, float, bool, str)) or _is_opaque(value)


def _is_opaque(value: Any) -> bool:
    return type(value).__name__ in ("FakeScriptObject", "ScriptObject", "BackwardState")


def _argument(node: fx.Node, name: str) -> Any:
    """The value a call passes for a named argument of its schema, or the schema's default."""
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, argument.default_value)
    return None


def is_random(node: fx.Node) -> bool:
    """Draws from a random generator. Attention and dropout that drop nothing do not."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = {a.name for a in node.target._schema.arguments}
    if "dropout_p" in names:
        return _argument(node, "dropout_p") != 0.0
    if node.target is torch.ops.aten.native_dropout.default:
        return _argument(node, "train") is not False and _argument(node, "p") != 0.0
    return True


def has_own_generator(node: fx.Node) -> bool:
    """Draws from a generator of the user's: its state is not the one a replay would set."""
    return any(
        isinstance(a, torch.Generator) for a in pytree.arg_tree_leaves(*node.args, **node.kwargs)
    )


def has_effect(node: fx.Node) -> bool:
    """Must run exactly once, in its place."""
    if is_random(node) or is_mutable(node) or partitioners.is_with_effects(node):
        return True
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _COLLECTIVES:
        return True
    return bool(node.is_impure(impure_random=False))


def may_rerun(node: fx.Node) -> bool:
    """Running it again, later, gives the same bits and is what the user wants."""
    if node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE:
        return False
    if node.meta.get("partitioner_tag") in ("must_be_in_forward", "must_be_in_backward"):
        return False
    return isinstance(node.target, torch._ops.OpOverload)


def must_recompute(node: fx.Node) -> bool:
    return node.meta.get("recompute") is CheckpointPolicy.MUST_RECOMPUTE


def generator_bytes(node: fx.Node) -> int:
    where = device(node)
    if where.type == "cpu":
        return int(torch.get_rng_state().numel())
    return int(torch.get_device_module(where).get_rng_state(where).numel())


def device(node: fx.Node) -> torch.device:
    for leaf in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(leaf, torch.Tensor):
            return leaf.device
    return torch.device("cpu")


def viewed(node: fx.Node) -> fx.Node | None:
    """What a call takes a view of; of an element, what its call does."""
    call = node.args[0] if node.target is operator.getitem else node
    if not isinstance(call, fx.Node) or not getattr(call.target, "is_view", False) or not call.args:
        return None
    return call.args[0] if isinstance(call.args[0], fx.Node) else None


def storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def at_hint(size: Any) -> int:
    """A size as a number: symbolic ones at the value they had when captured."""
    if isinstance(size, torch.SymInt):
        hint = size.node.hint
        return int(hint) if hint is not None else 0
    return int(size)


def target_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    return f"{module}.{getattr(target, '__name__', type(target).__name__)}".lstrip(".")


def layer(node: fx.Node) -> str:
    """Path of the innermost module, `blocks.0.mlp.1`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = next(reversed(stack.values()))[0]
    path = re.sub(r"^[LG]\['\w+'\]\.?(__self__\.?)?|^L__self__\.?|^self\.?", "", path)
    return re.sub(r"_modules\['([^']*)'\]|\['([^']*)'\]", r"\1\2", path).strip(".")


def source_line(node: fx.Node) -> str:
    trace = node.meta.get("stack_trace")
    if not trace:
        return ""
    found = re.findall(r'File "([^"]+)", line (\d+)', trace)
    return f"{Path(found[-1][0]).name}:{found[-1][1]}" if found else ""
