"""What did each op cost when it was measured before? Op costs on disk, shared by all processes of a user.

Goes in: an op's signature and its `Cost`. Comes out: the cost, in this process and in every later one with the same
environment (device, torch, threads: `cost/key.py`).

The store is a folder of text files, one per environment and host, to which whole lines are appended:

    <crc32 of the rest> {"signature": "aten.mm.default(...)", "seconds": 0.0012, "workspace": 0, "how": "measured"}

- *One write per entry, in append mode.* The kernel puts appends one after another, so processes need no lock and see each
  other's entries as soon as they look for one. Hosts that share a home folder (NFS, where neither appends nor SQLite's locks
  hold between machines) read each other's files and write only their own.
- *Killed in the middle*: the entry being written is lost and nothing else. An entry starts with a line break of its own, so
  what follows half a line is still read. Nothing is flushed to the platter: a measurement can be made again.
- *Damaged*: a whole line whose checksum is wrong. The file is moved aside, said once, and rebuilt from its good lines,
  where a database may lose the table with the page.
- *Read-only or full disk*: said once; costs stay in memory.

A few thousand lines of a few hundred bytes are read in milliseconds, so there is no index. Estimates are kept in memory only:
a later run may be able to measure.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import platform
import re
import threading
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

__all__ = ["Cost", "CostStore", "clear", "environments"]

logger = logging.getLogger("lowtide.cost")

How = Literal["measured", "estimated"]
_SUFFIX = ".costs"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call of an op costs."""

    seconds: float
    workspace: int
    """Most bytes allocated while it runs, besides its inputs and its outputs."""
    how: How = "measured"
    same_bits: bool = True
    """Of an entry that compares two calls: are they equal to the bit?"""
    looks: tuple[float, ...] = ()
    """The seconds of each time it was measured undisturbed. Where there are any, `seconds` is the middle one."""


class CostStore:
    """Costs by signature for one environment. Safe to use from several threads and processes."""

    def __init__(self, folder: Path | str, environment: str) -> None:
        self.folder = Path(folder)
        self.environment = environment
        digest = hashlib.sha256(environment.encode()).hexdigest()[:16]
        host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node()) or "host"
        self.path = self.folder / f"{digest}-{host}{_SUFFIX}"
        self._pattern = f"{digest}-*{_SUFFIX}"
        self._costs: dict[str, Cost] = {}
        self._read_to: dict[Path, tuple[int, int]] = {}
        self._lock = threading.RLock()
        self._refresh()

    def get(self, signature: str) -> Cost | None:
        with self._lock:
            if signature not in self._costs:
                self._refresh()
            return self._costs.get(signature)

    def put(self, signature: str, cost: Cost) -> None:
        with self._lock:
            self._costs[signature] = cost
            if cost.how == "measured":
                self._append(_encode(_entry(signature, cost)))

    def __len__(self) -> int:
        return len(self._costs)

    def _append(self, line: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Opened anew each time: another process may have moved a damaged file aside.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.fstat(descriptor).st_size == 0:
                    line = _encode({"environment": self.environment}) + line
                _write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            _warn_once(
                f"cannot keep measured op costs in {self.path}: {_why(error)}; kept in memory"
            )

    def _refresh(self) -> None:
        """Read what this and other processes appended since the last look."""
        for path in _files(self.folder, self._pattern):
            try:
                self._read(path)
            except OSError as error:
                _warn_once(f"op costs in {path}: {_why(error)}; used as far as they could be read")

    def _read(self, path: Path) -> None:
        state = path.stat()
        inode, start = self._read_to.get(path, (state.st_ino, 0))
        if inode != state.st_ino or start > state.st_size:
            start = 0  # another process has rebuilt or cleared it
        if start == state.st_size:
            return
        with path.open("rb") as file:
            file.seek(start)
            content = _Lines.of(file.read())
        self._costs |= content.costs
        self._read_to[path] = (state.st_ino, start + content.length)
        # Another host's file is its own to repair: over a network it may only look damaged while it is being written.
        if content.damaged and path == self.path:
            self._costs |= _rebuild(path, content.damaged)


@dataclass(frozen=True, slots=True)
class _Lines:
    """A stretch of a file, understood as far as it can be."""

    costs: dict[str, Cost]
    headers: tuple[dict[str, object], ...]
    damaged: int
    """Whole lines that are not what was written."""
    length: int
    """Bytes up to the last line break: what follows may still be on its way."""

    @staticmethod
    def of(content: bytes) -> _Lines:
        costs: dict[str, Cost] = {}
        headers: list[dict[str, object]] = []
        damaged = 0
        for line in content.split(b"\n"):
            entry = _decode(line)
            if entry is None:
                damaged += not _HALF.fullmatch(line)
            elif "environment" in entry:
                headers.append(entry)
            elif (cost := _cost(entry)) is not None:
                costs[str(entry["signature"])] = cost
        return _Lines(costs, tuple(headers), damaged, content.rfind(b"\n") + 1)


_WHOLE = re.compile(rb"[0-9a-f]{8} \{.*\}")
# What a killed writer leaves: the start of a line. Only other things are damage.
_HALF = re.compile(rb"[0-9a-f]{0,8}|[0-9a-f]{8} (\{.*[^}])?|[0-9a-f]{8} \{")


def _encode(entry: dict[str, object]) -> bytes:
    text = json.dumps(entry).encode()
    return b"\n%08x %s\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> dict[str, object] | None:
    """The entry that was written, or None if this is not all of it, to the bit."""
    if not _WHOLE.fullmatch(line) or int(line[:8], 16) != zlib.crc32(line[9:]):
        return None
    try:
        entry: dict[str, object] = json.loads(line[9:])
    except ValueError:
        return None
    return entry


def _entry(signature: str, cost: Cost) -> dict[str, object]:
    numbers = {"seconds": float(cost.seconds), "workspace": int(cost.workspace)}
    bits = {} if cost.same_bits else {"same_bits": False}
    looks = {"looks": list(cost.looks)} if cost.looks else {}
    return {"signature": signature, **numbers, "how": cost.how, **bits, **looks}


def _cost(entry: dict[str, object]) -> Cost | None:
    """None for an entry of another version of Lowtide that means something else."""
    match entry:
        case {"signature": str(), "seconds": float(s), "workspace": int(w), "how": "measured"}:
            if not math.isfinite(s) or s < 0 or w < 0:
                return None
            looks = entry.get("looks", [])
            seen = tuple(map(float, looks)) if isinstance(looks, list) else ()
            same = entry.get("same_bits", True) is True
            return Cost(s, w, same_bits=same, looks=seen)
    return None


def _rebuild(path: Path, damaged: int) -> dict[str, Cost]:
    """Move the file aside and write its good lines anew. They are read after the move: another process may just have written."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    content = _Lines.of(aside.read_bytes())
    _warn_once(
        f"{path} was damaged in {damaged} {'line' if damaged == 1 else 'lines'}: moved to {aside}, "
        f"rebuilt with the {len(content.costs)} measurements that are whole; the others are made again when needed"
    )
    entries = [
        *content.headers[:1],
        *(_entry(signature, cost) for signature, cost in content.costs.items()),
    ]
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        _write(descriptor, b"".join(_encode(entry) for entry in entries))
    finally:
        os.close(descriptor)
    return content.costs


def _write(descriptor: int, content: bytes) -> None:
    if os.write(descriptor, content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _files(folder: Path, pattern: str = f"*{_SUFFIX}") -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def environments(folder: Path | str) -> dict[str, int]:
    """How many measurements the folder holds for each environment."""
    signatures: dict[str, set[str]] = {}
    for path in _files(Path(folder)):
        try:
            content = _Lines.of(path.read_bytes())
        except OSError:
            continue
        name = str(content.headers[0]["environment"]) if content.headers else path.name
        signatures.setdefault(name, set()).update(content.costs)
    return {name: len(found) for name, found in sorted(signatures.items())}


def clear(folder: Path | str) -> int:
    """Remove all measurements, damaged files too; how many files went."""
    found = [*_files(Path(folder)), *_files(Path(folder), "*.damaged")]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def _why(error: OSError) -> str:
    return error.strerror or str(error)
