"""Documents of farms as frozen dataclasses.

A reward is `None` without a verdict. It is never 0 because of a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from .models import RunFailure

FarmState = Literal["queued", "starting", "running", "paused", "closed", "failed"]
"""State of a farm."""

GroupPolicy = Literal["refill", "drop", "as_is"]
"""How a group treats samples that the infrastructure lost."""

GroupEnd = Literal["complete", "dropped", "cancelled"]
"""How a group ended."""

Outcome = Literal["completed", "truncated", "no_result", "cancelled"]
"""How a sample ended."""

TrajectoryBasis = Literal["tokens", "messages"]
"""Items by which calls were compared."""


@dataclass(frozen=True)
class FarmPause:
    """A pause of a farm."""

    since: datetime
    """Its beginning."""


@dataclass(frozen=True)
class FarmTotals:
    """Sums over the whole life of a farm."""

    groups: int = 0
    """Admitted groups."""
    complete_groups: int = 0
    """Groups that ended complete."""
    samples: int = 0
    """Samples of admitted groups."""
    completed: int = 0
    """Samples that completed."""
    truncated: int = 0
    """Samples that were truncated."""
    no_result: int = 0
    """Samples without a result."""
    cancelled: int = 0
    """Samples that were cancelled."""
    usable: int = 0
    """Usable samples."""
    refills: int = 0
    """Samples that were lost and replaced."""
    late: int = 0
    """Results that came too late to count."""
    calls_without_ids: int = 0
    """Model calls for which a server with `capture: tokens` gave no token ids."""


@dataclass(frozen=True)
class FarmModelCalls:
    """Model calls of a farm's samples, as workers said at most a few seconds ago."""

    in_flight: int = 0
    """Calls that were sent and have not ended."""
    held: int = 0
    """Calls that a pause keeps back."""
    unconfirmed_workers: int = 0
    """Workers that may still send calls: they have not said that they apply the pause."""


@dataclass(frozen=True)
class FarmStatus:
    """The groups and samples that a farm holds."""

    name: str
    """Its name."""
    policy_version: int
    """The newest policy version."""
    closed: bool
    """Whether it admits no more groups."""
    last_cursor: int
    """Cursor of the newest completion; 0 without one."""
    open_groups: int
    """Groups that have not ended."""
    queued_samples: int
    """Samples that wait to be begun."""
    begun_samples: int
    """Samples that were begun and have not ended."""
    unacknowledged: int
    """Completions that no consumer has acknowledged."""
    totals: FarmTotals
    """Sums over its whole life."""
    pause: FarmPause | None = None
    """The pause, if it is paused."""
    model_calls: FarmModelCalls | None = None
    """Model calls of its samples; `None` without a gateway."""


@dataclass(frozen=True)
class FarmInfo:
    """A farm."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    user: str
    """The user who opened it."""
    priority: int
    """Its samples take free slots before those of a lower priority."""
    state: FarmState
    """Its state."""
    is_final: bool
    """Whether it has ended for good."""
    created_at: datetime
    """When it was opened."""
    settings: Mapping[str, Any]
    """Its settings."""
    ended_at: datetime | None = None
    """When it ended."""
    failure: RunFailure | None = None
    """Why its last session failed."""
    status: FarmStatus | None = None
    """Its groups and samples; `None` until it is open."""

    @property
    def is_over(self) -> bool:
        """Whether no completion will be added: it is closed, and every sample has ended."""
        if self.status is None:
            return self.is_final
        return self.is_final or (self.status.closed and self.status.open_groups == 0)


@dataclass(frozen=True)
class UnreadableFarm:
    """A farm that the server cannot open; only administrators see it."""

    id: str
    """Its id."""
    reason: str
    """Why it cannot be opened."""


@dataclass(frozen=True)
class FarmPage:
    """A page of farms."""

    farms: tuple[FarmInfo, ...]
    """Farms, newest first."""
    unreadable: tuple[UnreadableFarm, ...] = ()
    """Farms that cannot be opened, on the first page."""
    next_cursor: str | None = None
    """Cursor of the next page; `None` on the last one."""


@dataclass(frozen=True)
class SubmittedGroup:
    """The answer to a request for a group."""

    group: str
    """Its id."""
    known: bool
    """Whether the same request was admitted before."""
    end: GroupEnd | None = None
    """How it ended, if it has."""


@dataclass(frozen=True)
class GroupStatus:
    """A group. One that has ended and is acknowledged has its `end` only."""

    group: str
    """Its id."""
    n: int | None = None
    """Samples that it owes."""
    open: int | None = None
    """Samples that have not ended."""
    usable: int | None = None
    """Usable samples."""
    refills: int | None = None
    """Samples that were replaced."""
    end: GroupEnd | None = None
    """How it ended, if it has."""


@dataclass(frozen=True)
class CancelledGroup:
    """The answer to a cancellation."""

    group: str
    """The id of the group."""
    samples: int
    """Samples that it ended."""
    unknown: bool
    """Whether the farm did not know the group: its id is never admitted."""
    end: GroupEnd | None = None
    """How the group had ended before, if it had."""


@dataclass(frozen=True)
class PolicyVersions:
    """Versions of the policy around a sample, as the trainer said them."""

    requested: int
    """That of the group's request."""
    admitted: int
    """The newest one when the group was admitted."""
    ended: int
    """The newest one when the sample ended."""


@dataclass(frozen=True)
class Completion:
    """The terminal record of a sample."""

    cursor: int
    """Its number in the farm."""
    farm: str
    """Name of the farm."""
    group: str
    """The group."""
    index: int
    """Position in the group, from 0."""
    generation: int
    """Generation, from 1: a sample that the infrastructure lost is replaced by the next one."""
    consumer: str
    """The consumer that it is for."""
    outcome: Outcome
    """How it ended."""
    usable: bool
    """Whether a trainer may learn from it."""
    policy: PolicyVersions
    """Versions of the policy."""
    at: datetime
    """When it was decided."""
    cause: str | None = None
    """Of `no_result`: `infrastructure`, `agent`, `verifier` or `task`."""
    phase: str | None = None
    """Of `no_result`: where it happened."""
    reason: str | None = None
    """Of `cancelled`: why."""
    reward: float | None = None
    """The verifier's number; `None` without a verdict."""
    rewards: Mapping[str, Any] = field(default_factory=dict)
    """The verifier's numbers by their keys, if it gave several."""
    cost: float | None = None
    """Its cost, as far as it is known; `None` if nothing of it is."""
    error: Mapping[str, Any] | None = None
    """The first cause of failure."""
    execution: Mapping[str, Any] | None = None
    """The execution that decided it."""
    other_executions: int = 0
    """Other executions of this generation."""
    group_end: GroupEnd | None = None
    """How the group ended, if this is its last completion."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the group's request."""
    raw: Mapping[str, Any] | None = field(default=None, repr=False)
    """The whole document."""


@dataclass(frozen=True)
class CompletionPage:
    """Completions after a cursor."""

    completions: tuple[Completion, ...]
    """Completions that were not acknowledged, in their order."""
    next_after: int
    """The cursor after which the next page begins."""


@dataclass(frozen=True)
class CompletedGroup:
    """A group that has ended, with its completions."""

    group: str
    """Its id."""
    n: int
    """Samples that it owed."""
    end: GroupEnd
    """How it ended. Only a `complete` group should be used."""
    completions: tuple[Completion, ...]
    """Its completions, by their position in the group."""

    @property
    def is_whole(self) -> bool:
        """Whether all completions are here: none was acknowledged alone before."""
        return len(self.completions) == self.n

    @property
    def usable(self) -> tuple[Completion, ...]:
        """The completions that a trainer may learn from."""
        return tuple(completion for completion in self.completions if completion.usable)

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """The rewards; `None` without a verdict."""
        return tuple(completion.reward for completion in self.completions)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of its request."""
        return self.completions[0].metadata


@dataclass(frozen=True)
class Acknowledgement:
    """The answer to an acknowledgement."""

    acknowledged: int
    """Completions that were acknowledged now."""
    repeated: int
    """Completions that were acknowledged before."""
    unknown: int
    """Cursors that no completion of the consumer has."""


@dataclass(frozen=True)
class PausedFarm:
    """The answer to a pause."""

    paused: bool
    """Whether the farm is paused."""
    in_flight: int
    """Samples that were begun and have not ended."""
    model_calls: FarmModelCalls | None = None
    """Their model calls; `None` without a gateway."""


@dataclass(frozen=True)
class CallPolicy:
    """Versions of the policy around a model call. Two mean that the weights changed meanwhile."""

    dispatched: int | None = None
    """That when the call was sent for the last time; `None` if it never was."""
    ended: int | None = None
    """That when it ended."""


@dataclass(frozen=True)
class Trajectory:
    """Model calls of a sample whose prompts continue each other exactly.

    Calls that continue the same call are branches: each is a trajectory of its own with all calls.
    """

    calls: tuple[int, ...]
    """Numbers of its calls."""
    by: TrajectoryBasis
    """Items that were compared. There are ids only with `tokens`."""
    ids: tuple[int, ...] = ()
    """Token ids of the last prompt and its reply."""
    mask: tuple[int, ...] = ()
    """For each token, whether the model sampled it: 1 or 0."""
    logprobs: tuple[float | None, ...] = ()
    """For each token, its log probability; `None` if it was not sampled or has none."""
    policies: tuple[CallPolicy, ...] = ()
    """For each call, the versions of the policy; empty if workers knew none."""


@dataclass(frozen=True)
class TrajectoryList:
    """The model calls of a sample."""

    trajectories: tuple[Trajectory, ...]
    """Its trajectories."""


@dataclass(frozen=True)
class InlineTask:
    """A task of a farm with another instruction."""

    base: str
    """The task whose environment, tests and time limits are used."""
    instruction: str
    """The instruction."""


@dataclass(frozen=True)
class ModelEndpoint:
    """A model that agents call."""

    name: str
    """Its name."""
    base_url: str | None = None
    """Base URL of an API."""


GroupRef: TypeAlias = "str | SubmittedGroup | GroupStatus | CompletedGroup"
"""A group or its id."""

CompletionRef: TypeAlias = "int | Completion"
"""A completion or its cursor."""
