"""How does one slow or hungry call not take the whole bench with it? It runs in a process of its own, with a time limit.

Goes in: a function without arguments that returns plain data. Comes out: what it returned, or an error that says how it ended. The process is
forked, so the function may close over large graphs and finds everything warm; where the system cannot fork, the function is simply
called. Ctrl-C reaches only the caller, who ends the child.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from lowtide.errors import LowtideError

__all__ = ["apart"]


def apart(function: Callable[[], Any], limit: float) -> Any:
    """`function()`. Raises `LowtideError` if it raised one, took more than `limit` seconds, or died."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return function()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(function, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            raise LowtideError(f"took longer than {limit:.0f} s")
        outcome, answer = ours.recv()
    except EOFError:
        child.join()
        raise LowtideError(f"its process died with code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
        ours.close()
    if outcome == "failed":
        raise LowtideError(answer)
    return answer


def _run(function: Callable[[], Any], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = ("done", function())
    except LowtideError as error:
        answer = ("failed", str(error).removeprefix(f"{error.code} "))
    except Exception as error:  # whatever it is: the caller's table has a cell for it
        answer = ("failed", f"{type(error).__name__}: {error}")
    pipe.send(answer)
    pipe.close()
