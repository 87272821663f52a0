"""Do two calls give the same bits on this device? Tried once, remembered with the costs.

Goes in: a captured call and a rule's form of it, with the outputs both make. Comes out: whether these are equal to the bit, or to
rounding where that is allowed, and laid out alike. What decides it is the order in which a kernel adds, which depends on sizes, threads and device but not on the
values; so runs on random values tell, and the answer has the same key as a measured time.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lowtide.capture.forms import Form
from lowtide.cost.store import Cost, CostStore
from lowtide.measure.inputs import normal, real_tensor
from lowtide.measure.peak import available_bytes
from lowtide.measure.timing import Call, apart

__all__ = ["same_bits"]

logger = logging.getLogger("lowtide.measure")

_ENOUGH = 2**12
"""Numbers to compare of each tensor. Sums of ten numbers by two kernels were seen to differ in one of a hundred."""
_MOST_TRIALS = 128
_LONG_ENOUGH = 0.2
"""Seconds, but three trials at least: an op that takes long adds many numbers up, and then two ways seldom agree."""


def same_bits(
    plain: Form,
    form: Form,
    wanted: Sequence[int | None],
    call_of: Callable[[Form], Call],
    store: CostStore,
    need: int = 0,
    *,
    rounding: bool = False,
) -> bool:
    """`need`: bytes that a trial may take. `rounding`: the last bits may differ."""
    what = "same but for rounding" if rounding else "same bits"
    key = f"{what}, {_ENOUGH} numbers: {call_of(form).signature} and {call_of(plain).signature}"
    known = store.get(key)
    if known is None:
        try:
            known = Cost(
                0.0, 0, same_bits=_try(plain, form, wanted, need, _close if rounding else _equal)
            )
        except Exception as error:  # whatever a kernel may raise for made-up values, or memory
            logger.debug("%s: could not be tried: %s", key, error)
            return False
        store.put(key, known)
    return known.same_bits


def _try(
    plain: Form,
    form: Form,
    wanted: Sequence[int | None],
    need: int,
    alike: Callable[[torch.Tensor, torch.Tensor], bool],
) -> bool:
    """On one set of random values or, where few numbers come out, on many: two ways to add may agree on any one of them."""
    device = next(n.meta["val"].device for n in plain.args if isinstance(n, fx.Node))
    if need > available_bytes(device):
        raise MemoryError(f"may need {need} bytes")
    until = time.perf_counter() + _LONG_ENOUGH
    with apart(device):
        trials = trial = 1
        while trial <= min(trials, 3) or (trial <= trials and time.perf_counter() < until):
            pairs = _results(plain, form, wanted, trial)
            if not all(alike(*pair) for pair in pairs):
                return False
            fewest = min((one.numel() for one, _ in pairs if one.numel()), default=_ENOUGH)
            trials = min(_MOST_TRIALS, -(-_ENOUGH // fewest))
            trial += 1
    return True


def _results(
    plain: Form, form: Form, wanted: Sequence[int | None], trial: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made: dict[fx.Node, torch.Tensor] = {}

    def real(node: fx.Node) -> Any:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise ValueError(f"{node.name} is no tensor")
        if node not in made:
            made[node] = real_tensor(node.meta["val"], normal if trial == 1 else fresh)
        return made[node]

    def fresh(flat: torch.Tensor, like: torch.Tensor) -> None:
        if flat.is_floating_point() or flat.is_complex():
            flat.normal_()
        else:
            flat.zero_()

    one = plain.call(real)
    made |= _own_results(plain, one, form)
    other = form.call(real)
    return [(_element(one, i), _element(other, i)) for i in wanted or range(len(one))]


def _own_results(plain: Form, results: Any, form: Form) -> dict[fx.Node, torch.Tensor]:
    """What the form reads of what the captured call itself made: a batch norm's statistics."""
    return {
        node: results[node.args[1]]
        for node in form.args
        if isinstance(node, fx.Node)
        and node.target is operator.getitem
        and node.args[0].args == plain.args
    }


def _element(made: Any, index: int | None) -> torch.Tensor:
    return made if index is None else made[index]


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also where 0 and -0, or two NaNs, are compared."""
    if not _laid_out_alike(one, other):
        return False
    flat = [torch.view_as_real(t) if t.is_complex() else t for t in (one, other)]
    return torch.equal(*(t.contiguous().flatten().view(torch.uint8) for t in flat))


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To half of the digits."""
    if not _laid_out_alike(one, other):
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    half = torch.finfo(one.dtype).eps ** 0.5
    return bool((one - other).norm() <= half * one.norm())


def _laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.stride(), one.dtype, one.shape) == (other.stride(), other.dtype, other.shape)
