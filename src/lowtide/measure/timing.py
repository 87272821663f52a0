"""How long does each op of a step take on this device, and how much memory does it use besides its operands?

Goes in: the calls of a captured graph and a `CostStore`. Comes out: a `Cost` for each distinct signature. What the store knows
is not measured again; what is measured goes into it at once, so that an interrupted run loses nothing.

Per op: real inputs are made, the op runs once to warm up, once with the allocator's reports recorded (its workspace is
the most that was allocated less what is left of it, its outputs), then repeatedly under the clock. Then everything is
freed: measuring needs one op's memory at a time. What would not fit, or fails, is estimated instead (`cost/analytic.py`).

How it is timed was chosen by comparing sums over whole graphs with real steps:
- *Cold.* Before each run a block larger than the last-level cache is written over. In a step the operands were made a while
  ago; with warm caches element-wise ops, which is what gets recomputed, came out at half to three quarters of their time.
- *Undisturbed.* On a busy machine an op with two threads waits for the slower one, for a whole time slice of the scheduler: 8 ms
  instead of 0.3. The kernel says how long our threads waited for a processor; the median is taken over the runs in which they
  did not. An op without such a run is run on one thread, whose own processor time no other process can lengthen, and that is divided
  by the speed-up of an op that is one tenth serial. With four busy processes on two cores this gave a quiet step's time
  within 15%, where the clock gave ten times it.
- *As long as it needs.* A few runs of about 20 to 60 ms in all; one or two of an op that takes longer.
- *At several moments.* A shared machine is slower for seconds or hours by up to a half, and a planner that compares an op from then with one
  from now finds all the difference. So what takes a while is looked at three times, in later calls too, and the middle one counts: the
  shortest of all would be the luckiest, and the planner would choose among the lucky.

We may be called from inside a compiler backend, so fake-tensor and other dispatch modes, autocast and gradients are off meanwhile. Random
generators are left as they were found.
"""

from __future__ import annotations

import gc
import logging
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.cost.analytic import Spec, estimate, sheet_for
from lowtide.cost.key import environment_key
from lowtide.cost.store import Cost, CostStore
from lowtide.measure.inputs import (
    Fill,
    empty,
    normal,
    probabilities,
    real_inputs,
    tensors_in,
    with_zeros_as_planned,
)
from lowtide.measure.peak import available_bytes, record
from lowtide.measure.signature import concrete, dtype_name

__all__ = ["Call", "Progress", "apart", "environment", "measure_calls", "undisturbing", "waited"]

logger = logging.getLogger("lowtide.measure")

Progress = Callable[[int, int, int], None]
"""Called with: signatures done (the known ones among them), distinct signatures, those already known at the start."""

LONG = 0.06
"""Seconds from which an op is run as rarely as possible."""
TINY = 20e-6
"""Seconds below which an op reads nothing that a cache could hold."""
WORTH = 2e-4
"""Seconds from which an op is looked at again."""
LOOKS = 3
AGAIN = 10.0
"""Seconds that one call may spend on looking again; the next goes on."""
SERIAL = 0.1
"""Share of an op that is taken not to run in parallel, where that could not be measured."""


@dataclass(frozen=True, slots=True)
class Call:
    """One op call of a captured graph. Tensors in `args` and `kwargs` may be fake."""

    signature: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    made: int = 0
    """Bytes that it makes, where that is known: a Python function is not asked."""


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    undisturbed: bool


def measure_calls(
    calls: Sequence[Call], store: CostStore, *, progress: Progress | None = None
) -> dict[str, Cost]:
    """The cost of each distinct signature among `calls`."""
    distinct = {call.signature: call for call in reversed(calls)}
    known = {s: cost for s in distinct if (cost := store.get(s)) is not None}
    todo = [distinct[s] for s in dict.fromkeys(c.signature for c in calls) if s not in known]
    say = progress or (lambda done, total, cached: None)
    say(len(known), len(distinct), len(known))
    if todo:
        with undisturbing(_device(todo)):
            costs = _measure(todo, store, lambda n: say(len(known) + n, len(distinct), len(known)))
        known |= costs
    unsure = [distinct[s] for s in sorted(known, key=lambda s: _sureness(known[s]))]
    unsure = [call for call in unsure if _is_unsure(known[call.signature])]
    if unsure:
        with undisturbing(_device(unsure)):
            known |= _again(unsure, known, store)
    return known


def _is_unsure(cost: Cost) -> bool:
    return cost.how == "measured" and len(cost.looks) < LOOKS and cost.seconds >= WORTH


def _sureness(cost: Cost) -> tuple[int, float]:
    """The least looked at first, of these the longest."""
    return len(cost.looks), -cost.seconds


def _again(calls: Sequence[Call], known: Mapping[str, Cost], store: CostStore) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    flush = _flush(_device(calls))
    until = time.perf_counter() + AGAIN
    for call in calls:
        if time.perf_counter() > until:
            break
        before = known[call.signature]
        look = _cost_or_none(call, flush, before)
        if look is not None and look.looks:
            costs[call.signature] = _surer(before, look)
            store.put(call.signature, costs[call.signature])
    return costs


def _surer(known: Cost, look: Cost) -> Cost:
    looks = (*known.looks, *look.looks)
    return replace(known, seconds=statistics.median_low(looks), looks=looks)


def _measure(
    calls: Sequence[Call], store: CostStore, done: Callable[[int], None]
) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    flush = _flush(_device(calls))
    for number, call in enumerate(calls, 1):
        cost = store.get(call.signature)  # another process may have been here meanwhile
        if cost is None:
            cost = _cost_or_none(call, flush) or _estimate(call)
            store.put(call.signature, cost)
        costs[call.signature] = cost
        done(number)
    return costs


def _cost_or_none(call: Call, flush: torch.Tensor, known: Cost | None = None) -> Cost | None:
    """None, and a line in the debug log, where the op cannot be run here."""
    reason = ""
    for fill in (normal, probabilities):
        try:
            return _cost(call, fill, flush, known)
        except MemoryError as error:
            reason = str(error)
            break
        except Exception as error:  # whatever a kernel may raise for made-up values
            reason = f"{type(error).__name__}: {error}"
    logger.debug("estimated, not measured: %s: %s", call.signature, reason)
    return None


def _cost(call: Call, fill: Fill, flush: torch.Tensor, known: Cost | None) -> Cost:
    device = _device([call])
    _check_memory(call, device)
    args, kwargs = real_inputs(call.args, call.kwargs, fill)
    args = with_zeros_as_planned(call.function, args)

    def run() -> object:
        return call.function(*args, **kwargs)

    run()  # makes what is made once: kernels, caches
    workspace = known.workspace if known else _workspace(run, device)
    runs = list(_runs(run, device, flush))
    good = [one.seconds for one in runs if one.undisturbed]
    if good:
        seconds = statistics.median(good)
        return Cost(seconds, workspace, looks=(seconds,))
    logger.debug("the machine is busy: timed on one thread")
    least = min(one.seconds for one in runs)
    return Cost(min(least, _seconds_if_alone(run, flush)), workspace)


def _workspace(run: Callable[[], object], device: torch.device) -> int:
    recording = record(run, device)
    return max(0, recording.peak - max(0, recording.left))


def _runs(run: Callable[[], object], device: torch.device, flush: torch.Tensor) -> Iterator[_Run]:
    """Timed runs, until there are enough undisturbed ones or it takes too long."""
    first = _clock(run, device)
    if first.seconds > LONG:
        yield first
        if first.seconds < 5 * LONG:
            yield _clock(run, device)
        return
    start, count, good = time.perf_counter(), 0, 0
    while True:
        if first.seconds > TINY:
            flush.add_(1)
        one = _clock(run, device)
        count, good = count + 1, good + one.undisturbed
        yield one
        spent = time.perf_counter() - start
        if count >= 50 or (good >= 3 and spent > 0.02) or (count >= 3 and spent > LONG):
            return


def _seconds_if_alone(run: Callable[[], object], flush: torch.Tensor) -> float:
    """What a CPU op would take on an idle machine, from the processor time of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run()
        busy = _processor_seconds(run, flush)
        if busy < LONG:
            busy = min(busy, _processor_seconds(run, flush))
    finally:
        torch.set_num_threads(threads)
    return busy * (SERIAL + (1 - SERIAL) / threads)


def _processor_seconds(run: Callable[[], object], flush: torch.Tensor) -> float:
    flush.add_(1)
    start = time.thread_time()
    run()
    return time.thread_time() - start


def _clock(run: Callable[[], object], device: torch.device) -> _Run:
    """The outputs are freed under the clock, as they are in a step."""
    _synchronize(device)
    before = waited()
    start = time.perf_counter()
    run()
    _synchronize(device)
    seconds = time.perf_counter() - start
    return _Run(seconds, device.type != "cpu" or waited() - before <= seconds / 20)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waited() -> float:
    """Seconds that our threads were ready to run and had no processor, so far; 0 where the system does not say."""
    total = 0
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError, IndexError):  # a thread that just ended
                total += int((task / "schedstat").read_text().split()[1])
    return total * 1e-9


def _flush(device: torch.device) -> torch.Tensor:
    """A block that pushes everything else out of the last-level cache when it is written over."""
    return torch.zeros((48 if device.type == "cpu" else 96) * 2**18, device=device)


def _device(calls: Sequence[Call]) -> torch.device:
    """Where the calls run: the first device that is not the CPU, which may hold scalars only."""
    devices = [t.device for call in calls for t in tensors_in(call.args, call.kwargs)]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def _check_memory(call: Call, device: torch.device) -> None:
    """Refuse what would not fit: on the CPU the system would kill us instead of saying no."""
    inputs = sum(_bytes(t) for t in tensors_in(call.args, call.kwargs))
    outputs = max(call.made, sum(spec.bytes for spec in _output_specs(call)))
    need, free = inputs + 3 * outputs, available_bytes(device)
    if need > 0.9 * free:
        raise MemoryError(f"may need {need} bytes, {free} are free")


def _bytes(tensor: torch.Tensor) -> int:
    size, stride = map(concrete, tensor.shape), map(concrete, tensor.stride())
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    return (last + 1) * tensor.element_size()


def _estimate(call: Call) -> Cost:
    inputs = _specs(tensors_in(call.args, call.kwargs))
    name = call.signature.split("(")[0]
    return estimate(name, inputs, _output_specs(call), sheet_for(_device_name(_device([call]))))


def _output_specs(call: Call) -> list[Spec]:
    """Shapes of what the call returns, found with fake tensors of our own; none where that fails.

    Ops only: a Python function may keep what it made, and must not keep a fake tensor.
    """
    if not isinstance(call.function, torch._ops.OpOverload):
        return []
    with suppress(Exception), FakeTensorMode():
        args, kwargs = real_inputs(call.args, call.kwargs, empty)
        return _specs(tensors_in(call.function(*args, **kwargs)))
    return []


def _specs(tensors: Sequence[torch.Tensor]) -> list[Spec]:
    """Without those whose sizes are known only when they are there."""
    specs = []
    for tensor in tensors:
        with suppress(ValueError):
            specs.append(Spec(dtype_name(tensor.dtype), tuple(map(concrete, tensor.shape))))
    return specs


@contextmanager
def undisturbing(device: torch.device) -> Iterator[None]:
    """`apart`, and no garbage collection."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with apart(device):
            yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def apart(device: torch.device) -> Iterator[None]:
    """Real tensors, no gradients, no autocast; random generators as before at the end."""
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with (
        _disable_current_modes(),
        torch.no_grad(),
        torch._C._DisableAutocast(),
        torch.random.fork_rng(devices),
    ):
        yield


def environment(device: torch.device) -> str:
    """The environment half of a measurement's key, for this process."""
    flags = []
    if device.type == "cpu":
        flags += [torch.backends.cpu.get_cpu_capability().lower()]
        flags += [] if torch.backends.mkldnn.enabled else ["no onednn"]
    else:
        flags += ["tf32"] if torch.backends.cuda.matmul.allow_tf32 else []
        flags += ["cudnn search"] if torch.backends.cudnn.benchmark else []
    flags += ["deterministic"] if torch.are_deterministic_algorithms_enabled() else []
    return environment_key(_device_name(device), torch.__version__, torch.get_num_threads(), flags)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return device.type
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"cpu {line.split(':', 1)[1].strip()}"
    return f"cpu {platform.processor() or platform.machine()}"
