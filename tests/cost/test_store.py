"""The store loses nothing but the entry being written, whatever happens around it."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lowtide.cost.key import environment_key
from lowtide.cost.store import Cost, CostStore, clear, environments

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
WRITER = """
import sys
from lowtide.cost.store import Cost, CostStore
folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = CostStore(folder, "env")
i = 0
while i < count or count < 0:
    store.put(f"{name} {i} " + "x" * 300, Cost(i / 1000, i))
    i += 1
    print(i, flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), name, str(count)]
    environ = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


def signature(name: str, i: int) -> str:
    return f"{name} {i} " + "x" * 300


def filled(folder: Path, count: int = 20) -> CostStore:
    store = CostStore(folder, "env")
    for i in range(count):
        store.put(f"op {i}", Cost(i / 7, i))
    return store


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_cost_comes_back_in_this_store_and_in_the_next(tmp_path: Path) -> None:
    cost = Cost(0.1 + 0.2, 2**40)
    store = CostStore(tmp_path, "env")
    store.put('aten.mm.default(f32[2|1]@cpu, "\n\u00e9")', cost)
    assert len(store) == 1
    again = CostStore(tmp_path, "env")
    assert again.get('aten.mm.default(f32[2|1]@cpu, "\n\u00e9")') == cost
    assert again.get("aten.mm.default()") is None


def test_environments_do_not_mix(tmp_path: Path) -> None:
    filled(tmp_path)
    assert CostStore(tmp_path, "another").get("op 1") is None


def test_the_last_measurement_counts(tmp_path: Path) -> None:
    filled(tmp_path).put("op 3", Cost(9.0, 9))
    assert CostStore(tmp_path, "env").get("op 3") == Cost(9.0, 9)


def test_an_estimate_is_not_kept_on_disk(tmp_path: Path) -> None:
    store = CostStore(tmp_path, "env")
    store.put("op", Cost(1.0, 0, "estimated"))
    assert store.get("op") == Cost(1.0, 0, "estimated")
    assert CostStore(tmp_path, "env").get("op") is None


def test_a_store_sees_what_another_one_writes_later(tmp_path: Path) -> None:
    early, late = CostStore(tmp_path, "env"), CostStore(tmp_path, "env")
    late.put("op", Cost(1.0, 2))
    assert early.get("op") == Cost(1.0, 2)
    late.put("other", Cost(3.0, 4))
    assert early.get("other") == Cost(3.0, 4)


def test_another_hosts_file_is_read_and_never_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = filled(tmp_path).path
    theirs.write_bytes(theirs.read_bytes() + b"\nnot yet all there\n")
    before = theirs.read_bytes()
    monkeypatch.setattr("platform.node", lambda: "another/host")
    mine = CostStore(tmp_path, "env")
    mine.put("mine", Cost(1.0, 1))
    assert mine.get("op 7") == Cost(1.0, 7)
    assert mine.path != theirs
    assert theirs.read_bytes() == before
    assert not warnings(caplog)


def test_processes_writing_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [writer(tmp_path, f"p{k}", 150) for k in range(4)]
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    store = CostStore(tmp_path, "env")
    assert len(store) == 600
    assert all(
        store.get(signature(f"p{k}", i)) == Cost(i / 1000, i) for k in range(4) for i in range(150)
    )


def test_threads_writing_at_once_lose_nothing(tmp_path: Path) -> None:
    store = CostStore(tmp_path, "env")

    def fill(k: int) -> None:
        for i in range(50):
            store.put(f"t{k} {i}", Cost(i, i))
            assert store.get(f"t{k} {i}") is not None
            store.get(f"missing {k} {i}")

    threads = [threading.Thread(target=fill, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store) == len(CostStore(tmp_path, "env")) == 400


def test_kill_9_loses_at_most_the_entry_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(0)
    for life in range(8):
        with writer(tmp_path, f"life {life}", -1) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.03))
            process.send_signal(signal.SIGKILL)
            acknowledged = 1 + sum(1 for line in process.stdout if line.endswith("\n"))
        store = CostStore(tmp_path, "env")
        assert all(store.get(signature(f"life {life}", i)) for i in range(acknowledged))
        for earlier in range(life):
            assert store.get(signature(f"life {earlier}", 0)) == Cost(0.0, 0)
    assert not warnings(caplog)


def test_half_an_entry_hides_neither_those_before_nor_those_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = filled(tmp_path, 3).path
    whole = path.read_bytes()
    last = whole.rindex(b"\n\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        store = CostStore(tmp_path, "env")
        assert store.get("op 0") == Cost(0.0, 0)
        assert store.get("op 1") == Cost(1 / 7, 1)
        store.put("after", Cost(5.0, 5))
        assert CostStore(tmp_path, "env").get("after") == Cost(5.0, 5)
    assert not warnings(caplog)


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_said_once_and_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    path = filled(tmp_path).path
    chance = random.Random(seed)
    content = bytearray(path.read_bytes())
    hits = chance.sample(range(len(content)), chance.choice((1, 1, 5, 60)))
    for hit in hits:
        content[hit] ^= chance.randrange(1, 256)
    path.write_bytes(content)

    store = CostStore(tmp_path, "env")
    found = {i: store.get(f"op {i}") for i in range(20)}
    assert all(cost in (None, Cost(i / 7, i)) for i, cost in found.items())
    assert sum(cost is None for cost in found.values()) <= 2 * len(hits)
    for i in range(20):
        store.put(f"op {i}", Cost(i / 7, i))
    assert len(warnings(caplog)) <= 1

    caplog.clear()
    rebuilt = CostStore(tmp_path, "env")
    assert [rebuilt.get(f"op {i}") for i in range(20)] == [Cost(i / 7, i) for i in range(20)]
    assert not warnings(caplog)


def test_a_wrong_digit_is_found_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path).path
    path.write_bytes(path.read_bytes().replace(b'"workspace": 7', b'"workspace": 8'))
    store = CostStore(tmp_path, "env")
    assert store.get("op 7") is None
    assert store.get("op 8") == Cost(8 / 7, 8)
    (said,) = warnings(caplog)
    assert "moved to" in said
    assert path.with_suffix(".damaged").exists()


@pytest.mark.parametrize(
    "content",
    [b"garbage", b"\x00" * 4096, b"SQLite format 3\x00" + bytes(range(256)) * 20, b"{}\n" * 9],
    ids=["text", "zeros", "binary", "other lines"],
)
def test_a_file_that_is_not_ours_is_moved_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    store = CostStore(tmp_path, "env")
    store.path.write_bytes(content)
    store = CostStore(tmp_path, "env")
    assert len(store) == 0
    assert len(warnings(caplog)) == 1
    assert store.path.with_suffix(".damaged").read_bytes() == content
    store.put("op", Cost(1.0, 1))
    assert CostStore(tmp_path, "env").get("op") == Cost(1.0, 1)
    assert len(warnings(caplog)) == 1


def test_a_folder_in_the_files_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CostStore(tmp_path, "env").path.mkdir()
    store = CostStore(tmp_path, "env")
    store.put("op", Cost(1.0, 1))
    assert store.get("op") == Cost(1.0, 1)
    assert store.get("missing") is None
    assert 1 <= len(warnings(caplog)) <= 2


# /proc takes no folders and /dev/full no bytes, not even from root, for whom permissions do not count.
def test_a_read_only_folder_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = f"/proc{tmp_path}"
    store = CostStore(folder, "env")
    for i in range(3):
        store.put(f"op {i}", Cost(1.0, i))
        CostStore(folder, "env").put(f"op {i}", Cost(1.0, i))
    assert store.get("op 1") == Cost(1.0, 1)
    (said,) = warnings(caplog)
    assert "in memory" in said


def test_a_full_disk_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CostStore(tmp_path, "env").path.symlink_to("/dev/full")
    store = CostStore(tmp_path, "env")
    for i in range(3):
        store.put(f"op {i}", Cost(1.0, i))
    assert store.get("op 2") == Cost(1.0, 2)
    (said,) = warnings(caplog)
    assert "No space left" in said


def test_entries_of_another_version_are_passed_over(tmp_path: Path) -> None:
    from lowtide.cost.store import _encode

    store = filled(tmp_path, 2)
    odd = [{"signature": "op 5"}, {"signature": "op 6", "seconds": "x", "workspace": 1, "how": "?"}]
    store.path.write_bytes(store.path.read_bytes() + b"".join(_encode(e) for e in odd))
    assert CostStore(tmp_path, "env").get("op 5") is None
    assert len(CostStore(tmp_path, "env")) == 2


def test_listing_and_clearing(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    CostStore(tmp_path, "other").put("op", Cost(1.0, 1))
    assert environments(tmp_path) == {"env": 3, "other": 1}
    assert clear(tmp_path) == 2
    assert environments(tmp_path) == {}
    assert environments(tmp_path / "missing") == {}


def test_the_environment_names_what_costs_depend_on() -> None:
    key = environment_key("cpu  AMD | EPYC", "2.13.0", 2, ["b", "a"])
    assert key == "cpu AMD / EPYC | torch 2.13.0 | 2 threads | a | b | method 2"
    assert key != environment_key("cpu  AMD | EPYC", "2.13.0", 4, ["b", "a"])
