"""Decisions about retries."""

from __future__ import annotations

import pytest

from rollout_client import RetryPolicy
from rollout_client._retry import Fault, RetryClock, Safety

NOT_SENT = Fault(may_have_arrived=False)
CUT = Fault(may_have_arrived=True)
BUSY = Fault(status=429, is_from_api=True, retry_after_sec=7.0)
STOPPING = Fault(status=503, is_from_api=True)
BAD_GATEWAY = Fault(status=503)


@pytest.mark.parametrize(
    ("fault", "is_safe_always", "is_safe_if_refused"),
    [
        (NOT_SENT, True, True),
        (CUT, True, False),
        (BUSY, True, True),
        (STOPPING, True, True),
        (BAD_GATEWAY, True, False),
        (Fault(status=408, is_from_api=True), True, False),
        (Fault(status=500, is_from_api=True), False, False),
        (Fault(status=404, is_from_api=True), False, False),
        (Fault(status=409, is_from_api=True), False, False),
        (Fault(may_have_arrived=False, is_permanent=True), False, False),
    ],
)
def test_fault_is_retried_only_where_that_is_safe(
    fault: Fault, is_safe_always: bool, is_safe_if_refused: bool
) -> None:
    assert fault.may_retry(Safety.ALWAYS) is is_safe_always
    assert fault.may_retry(Safety.IF_REFUSED) is is_safe_if_refused


def test_delays_double_up_to_the_longest() -> None:
    clock = RetryClock(RetryPolicy(total_sec=1000, first_delay_sec=1, max_delay_sec=5))
    delays = [clock.delay(CUT, Safety.ALWAYS, now=0, chance=1) for _ in range(5)]
    assert delays == [1, 2, 4, 5, 5]


def test_half_of_a_delay_is_chance() -> None:
    def first(chance: float) -> float | None:
        return RetryClock(RetryPolicy()).delay(CUT, Safety.ALWAYS, now=0, chance=chance)

    assert [first(0), first(0.5), first(1)] == pytest.approx([0.1, 0.15, 0.2])


def test_retry_after_is_waited_for_in_full() -> None:
    clock = RetryClock(RetryPolicy())
    assert clock.delay(BUSY, Safety.ALWAYS, now=0, chance=0) == 7.0


def test_retry_after_beyond_the_total_gives_up_at_once() -> None:
    clock = RetryClock(RetryPolicy(total_sec=6))
    assert clock.delay(BUSY, Safety.ALWAYS, now=0, chance=0) is None


def test_attempts_end_with_the_total() -> None:
    clock, now = RetryClock(RetryPolicy(total_sec=60)), 100.0
    attempts = 0
    while (delay := clock.delay(CUT, Safety.ALWAYS, now=now, chance=1)) is not None:
        now += delay
        attempts += 1
    assert now <= 160
    assert attempts >= 9


def test_progress_begins_the_total_anew() -> None:
    clock = RetryClock(RetryPolicy(total_sec=10))
    assert clock.delay(CUT, Safety.ALWAYS, now=0, chance=1) == 0.2
    clock.succeeded()
    assert clock.delay(CUT, Safety.ALWAYS, now=100, chance=1) == 0.2
    assert clock.delay(CUT, Safety.ALWAYS, now=111, chance=1) is None


def test_policy_without_total_never_retries() -> None:
    clock = RetryClock(RetryPolicy(total_sec=0))
    assert clock.delay(NOT_SENT, Safety.ALWAYS, now=0, chance=0) is None


def test_many_failures_overflow_nothing() -> None:
    clock = RetryClock(RetryPolicy(total_sec=1e9))
    delays = {clock.delay(CUT, Safety.ALWAYS, now=0, chance=1) for _ in range(3000)}
    assert max(delay or 0 for delay in delays) == 10


@pytest.mark.parametrize("values", [(-1, 1, 2), (1, 0, 2), (1, 3, 2)])
def test_policy_without_sense_is_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="cannot use the retry policy"):
        RetryPolicy(*values)
