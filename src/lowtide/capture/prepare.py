"""What is done to a joint graph before it is read? The same normalisation as PyTorch's own partitioner, and two repairs.

Dead code goes, and with it second names of a tensor (inside a joint graph there is nothing to detach from). Common subexpressions are
shared (for the last time: from here on a repeated op is a decision), user marks are tidied, collectives and effects are pinned. A
backward op that reads a primal which forward mutates would read the new value, silently wrong in stock PyTorch 2.13; it is given a
copy taken in forward instead. And dropout on a CPU is made to round as eager's does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch.utils.checkpoint import CheckpointPolicy

from lowtide.capture import meaning
from lowtide.kernels.dropout import compiled_scale, eager_scale

__all__ = ["prepare"]

_SECOND_NAMES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
_DROPOUT = torch.ops.aten.native_dropout.default
_DROPOUT_BACKWARD = torch.ops.aten.native_dropout_backward.default


def prepare(joint: fx.GraphModule, num_forward_outputs: int) -> fx.GraphModule:
    _use_one_name_for_a_tensor(joint)
    joint.graph.eliminate_dead_code()
    _round_dropout_as_eager_does(joint)
    joint.recompile()
    if functorch_config.cse:
        joint.graph = partitioners.fx_graph_cse(joint.graph)
    if partitioners.has_recomputable_ops(joint):
        joint = partitioners.cleanup_recompute_tags(joint, is_default_partition=False)
    partitioners.force_save_collectives(joint)
    for name in ("force_save_effectful_ops", "force_save_bw_mutation_src"):
        force: Any = getattr(partitioners, name, None)
        if force is not None:
            force(joint)
    _copy_what_forward_overwrites(joint, num_forward_outputs)
    joint.graph.lint()
    joint.recompile()
    return joint


def _use_one_name_for_a_tensor(joint: fx.GraphModule) -> None:
    for target in _SECOND_NAMES:
        for node in joint.graph.find_nodes(op="call_function", target=target):
            node.replace_all_uses_with(node.args[0], lambda user: user.op != "output")


def _round_dropout_as_eager_does(joint: fx.GraphModule) -> None:
    for node in joint.graph.find_nodes(op="call_function", target=_DROPOUT):
        given, p, train = node.args
        tensor = given.meta.get("val")
        known = isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
        if not known or train is False or not 0 < p < 1:
            continue
        scale = eager_scale(p, tensor.dtype)
        if compiled_scale(p, tensor.dtype) != scale:
            node.target, node.args = torch.ops.lowtide.dropout.default, (given, p, scale)
        for mask in list(node.users):
            for user in list(mask.users):
                if user.target is _DROPOUT_BACKWARD and user.args[1] is mask:
                    user.update_arg(2, scale)


def _copy_what_forward_overwrites(joint: fx.GraphModule, num_forward_outputs: int) -> None:
    backward = meaning.backward_nodes(joint)
    for primal in meaning.mutated_primals(joint, num_forward_outputs):
        for alias in _aliases(primal):
            readers = [
                u
                for u in alias.users
                if u in backward and u.op == "call_function" and not meaning.is_mutable(u)
            ]
            if alias in backward or not readers:
                continue
            copy = _copy(joint, alias)
            for reader in readers:
                reader.replace_input_with(alias, copy)


def _aliases(primal: fx.Node) -> list[fx.Node]:
    """The primal and the views taken of it, backward's own views left out."""
    tensor = primal.meta.get("val")
    if not isinstance(tensor, torch.Tensor):
        return []
    key = meaning.storage_key(tensor)
    found, pending = [primal], [primal]
    while pending:
        for user in pending.pop().users:
            made = user.meta.get("val")
            if user in found or user.op != "call_function" or meaning.is_mutable(user):
                continue
            if isinstance(made, torch.Tensor) and meaning.storage_key(made) == key:
                found.append(user)
                pending.append(user)
    return found


def _copy(joint: fx.GraphModule, alias: fx.Node) -> fx.Node:
    after = alias
    if alias.op == "placeholder":
        after = list(joint.graph.find_nodes(op="placeholder"))[-1]
    with joint.graph.inserting_after(after):
        copy = joint.graph.call_function(torch.ops.aten.clone.default, (alias,))
    fake = alias.meta["val"]
    with fake.fake_mode:
        made = torch.ops.aten.clone.default(fake)
    copy.meta = {
        **{k: v for k, v in alias.meta.items() if k in ("nn_module_stack", "stack_trace")},
        "val": made,
        "partitioner_tag": "is_forward",
        "recompute": CheckpointPolicy.MUST_SAVE,
    }
    return copy
