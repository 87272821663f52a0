"""Verdicts follow from rows: who is right, who keeps to the peak, who is faster."""

from __future__ import annotations

import math

import pytest

from lowtide.bench.race import Agreement, Duel, Row, budgets, duels, interleave

RIGHT, WRONG = Agreement(), Agreement(gradients=0.3, worst_gradient="words.weight")


def peer(*times: float, peak: int = 100, agreement: Agreement = RIGHT) -> Row:
    return Row("checkpoint", peak=peak, agreement=agreement, times=list(times))


def ours(*times: float, peak: int = 100, agreement: Agreement = RIGHT, failed: str = "") -> Row:
    return Row(
        "Lowtide", ("checkpoint",), 100, peak, agreement=agreement, failed=failed, times=list(times)
    )


def test_all_are_timed_in_turn_and_every_other_round_backwards():
    ran: list[str] = []
    steps = {name: lambda name=name: ran.append(name) for name in "abc"}
    cleaned: list[str] = []
    rows = list(interleave(steps, 3, cleaned.append))
    assert "".join(ran) == "cba" + "abc" + "cba" + "abc"
    assert [(number, name) for number, name, _ in rows] == list(
        zip([0] * 3 + [1] * 3 + [2] * 3, "abccbaabc")
    )
    assert cleaned == ran
    assert all(seconds >= 0 for *_, seconds in rows)


def test_near_peaks_are_one_budget_the_smaller():
    rows = [
        Row("eager", peak=2000),
        Row("a", peak=1004),
        Row("b", peak=1000),
        Row("c", peak=1008),
        Row("failed", failed="RuntimeError: no"),
        Row("Lowtide", budget=5, peak=5),
    ]
    assert budgets(rows) == [(1000, ("b", "a")), (1008, ("c",)), (2000, ("eager",))]


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        (ours(1, 1, 1), peer(2, 2, 2), "Lowtide faster"),
        (ours(3, 3, 3), peer(2, 2, 2), "Lowtide slower"),
        (ours(1, 2, 3), peer(2, 2, 2), "even"),
        (ours(1), peer(2), "one round is no verdict"),
        (ours(1, peak=101), peer(2), "Lowtide OVER the peer's peak"),
        (ours(1, agreement=WRONG), peer(2), "Lowtide WRONG"),
        (ours(3, 3), peer(2, 2, agreement=WRONG), "Lowtide slower, peer WRONG"),
        (ours(failed="not reached: needs 7 MiB"), peer(2), "not reached: needs 7 MiB"),
        (ours(), peer(), "not timed"),
    ],
)
def test_verdicts(mine: Row, theirs: Row, verdict: str):
    assert Duel(theirs, mine).verdict == verdict


def test_times_are_compared_round_by_round():
    # The machine was ten times slower in the second round, for both.
    assert Duel(peer(1, 10, 1), ours(0.9, 9, 0.9)).ratios == pytest.approx([0.9] * 3)


def test_each_peer_meets_the_row_that_has_its_peak():
    rows = [peer(1), Row("alone", peak=5), ours(1)]
    (duel,) = duels(rows)
    assert (duel.peer, duel.ours) == (rows[0], rows[2])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (RIGHT, "same bits"),
        (Agreement(2e-6, "a"), "max rel. error 2e-06"),
        (WRONG, "WRONG gradients: 3e-01 in words.weight"),
        (Agreement(math.inf, "a"), "WRONG gradients: inf in a"),
        (Agreement(0, "", 1.0, "norm.mean"), "same bits; WRONG buffers: 1e+00 in norm.mean"),
    ],
)
def test_wrong_is_said_plainly(found: Agreement, words: str):
    assert str(found) == words
