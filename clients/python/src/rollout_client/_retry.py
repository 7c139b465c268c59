"""Decisions about retries. Pure: time and chance come from outside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

RETRYABLE_STATUSES = frozenset({408, 429, 502, 503, 504})
"""Statuses after which the same request may succeed."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client tries again when the server cannot be reached or refuses for now.

    Only requests that are safe to repeat are repeated. A submission is safe: every attempt has the
    same idempotency key, so the server starts one run.
    """

    total_sec: float = 60.0
    """Seconds from the first failure after which no attempt begins; 0 for no retries. A stream of
    events begins anew with every event that it receives."""
    first_delay_sec: float = 0.2
    """Seconds before the second attempt. Later delays double."""
    max_delay_sec: float = 10.0
    """Longest delay, seconds, unless the server asks for a longer one."""

    def __post_init__(self) -> None:
        if not (self.total_sec >= 0 and 0 < self.first_delay_sec <= self.max_delay_sec):
            raise ValueError(
                "cannot use the retry policy: expected total_sec >= 0 and "
                "0 < first_delay_sec <= max_delay_sec"
            )


class Safety(Enum):
    """When a request may be repeated."""

    ALWAYS = auto()
    """Twice has the effect of once."""
    IF_REFUSED = auto()
    """Only if the server did certainly not do it."""


@dataclass(frozen=True)
class Fault:
    """Why an attempt failed."""

    status: int | None = None
    """Status of the answer; `None` without an answer."""
    may_have_arrived: bool = True
    """Without an answer: whether the server may have got the request."""
    is_permanent: bool = False
    """Without an answer: whether the next attempt must fail too, as with a wrong certificate."""
    is_from_api: bool = False
    """Whether the answer is a problem document of this API, and not one of a proxy."""
    retry_after_sec: float | None = None
    """Seconds after which the server suggests to try again."""

    def may_retry(self, safety: Safety) -> bool:
        """Return whether another attempt is safe and may succeed."""
        if self.status is None:
            is_safe = safety is Safety.ALWAYS or not self.may_have_arrived
            return is_safe and not self.is_permanent
        if self.status not in RETRYABLE_STATUSES:
            return False
        # The API refuses with 429 and 503 before it does anything; a proxy may answer 503 later.
        is_refusal = self.is_from_api and self.status in (429, 503)
        return safety is Safety.ALWAYS or is_refusal


class RetryClock:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._began: float | None = None

    def succeeded(self) -> None:
        """Note progress: the next failure is a first one."""
        self._failures, self._began = 0, None

    def delay(self, fault: Fault, safety: Safety, *, now: float, chance: float) -> float | None:
        """Return the seconds to wait before the next attempt; `None` to give up.

        Args:
            fault: Why the last attempt failed.
            safety: When the request may be repeated.
            now: Seconds of a clock that never goes back.
            chance: A random number from 0 to 1; half of a delay is chance, so that clients that
                lost the same server do not come back at once.
        """
        if self._began is None:
            self._began = now
        self._failures += 1
        policy = self._policy
        if policy.total_sec == 0 or not fault.may_retry(safety):
            return None
        # The exponent is bounded: a float has no 2 ** 2000.
        longest = policy.first_delay_sec * 2.0 ** min(self._failures - 1, 60)
        delay = min(longest, policy.max_delay_sec) * (0.5 + 0.5 * chance)
        delay = max(delay, fault.retry_after_sec or 0.0)
        return delay if now + delay <= self._began + policy.total_sec else None
