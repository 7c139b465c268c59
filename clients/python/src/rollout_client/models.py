"""Documents of the API as frozen dataclasses.

Enumerations are literal types: a value that a newer server has added is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

RunState = Literal[
    "queued", "starting", "running", "paused", "cancelling", "completed", "cancelled", "failed"
]
"""State of a run."""

ItemState = Literal[
    "queued", "waiting", "running", "completed", "failed", "cancelled", "unverified"
]
"""State of an item."""

RunKind = Literal["job", "executor", "tree"]
"""Kind of a run."""

SubmissionKind = Literal["job", "executor", "tree"]
"""Kind of a submission."""


ExportFormat = Literal["jsonl", "csv", "parquet", "tables", "harbor", "atif", "traces-jsonl", "sft"]
"""Format of an export; `tables` and `harbor` are tar archives of directories."""


@dataclass(frozen=True)
class Score:
    """Score of a run: over completed trials and the failures that count."""

    trials: int
    """Trials that count."""
    passed: int
    """Passed ones of these."""
    pass_rate: float | None = None
    """Share of these that passed; `None` when no trial counts."""
    mean_reward: float | None = None
    """Mean reward of these, with 0 for a failure; `None` when no trial counts or verifiers report
    no single reward."""
    pass_rate_low: float | None = None
    """The share if all infrastructure failures, and all failures of tasks before the agent began,
    counted as not passed; `None` without a trial, and of earlier servers."""
    pass_rate_high: float | None = None
    """The share if all of them had passed."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run: numbers of its trials."""

    session: int
    """Number of its last session, from 1; 0 before the first one."""
    total: int
    """Trials of the plan."""
    settled: int
    """Trials with a result: the sum of the next four."""
    completed: int
    """Trials whose verifier produced a reward."""
    failed: int
    """Trials that failed."""
    cancelled: int
    """Trials that were cancelled."""
    unverified: int
    """Trials that ran to their end without a verifier."""
    passed: int
    """Completed trials with reward 1 and every step verified."""
    infrastructure_failures: int
    """Failed trials by the infrastructure's fault."""
    running: int
    """Trials that run now, as far as is known."""
    mean_reward: float | None = None
    """Mean reward of the completed trials; `None` without any."""
    scored: Score | None = None
    """The score, as in `result.json`; `None` before the first session, for a search, and of earlier
    servers."""
    run: str | None = None
    """Id of the run in its journal; `None` before its first session."""


@dataclass(frozen=True)
class RunFailure:
    """Why a run failed."""

    code: int
    """The exit code that `rollout run` has for this failure."""
    message: str
    """The failed operation and its cause."""
    details: tuple[str, ...] = ()
    """Details, such as every fault of a job document."""
    hints: tuple[str, ...] = ()
    """Suggested actions."""
    is_temporary: bool = False
    """Whether it ends by itself: the disk of the server takes no writes, and the run or the farm
    continues when that changes."""


@dataclass(frozen=True)
class Run:
    """A run."""

    id: str
    """Its id."""
    name: str
    """Name of its job."""
    user: str
    """The user who submitted it."""
    kind: RunKind
    """Its kind."""
    priority: int
    """Runs with a higher priority start first."""
    state: RunState
    """Its state."""
    is_final: bool
    """Whether it has ended for good."""
    created_at: datetime
    """When it was submitted."""
    progress: Progress
    """Its trials."""
    ended_at: datetime | None = None
    """When it ended."""
    code: int | None = None
    """The exit code that `rollout run` has for its end."""
    failure: RunFailure | None = None
    """Why it failed."""

    @property
    def has_stopped(self) -> bool:
        """Whether it has ended, or waits for `resume` after a failed session.

        A run that failed with the disk of the server has not stopped: it continues by itself.
        """
        is_temporary = self.failure is not None and self.failure.is_temporary
        return self.is_final or (self.state == "failed" and not is_temporary)


@dataclass(frozen=True)
class UnreadableRun:
    """A run that the server cannot open; only administrators see it."""

    id: str
    """Its id."""
    reason: str
    """Why it cannot be opened."""


@dataclass(frozen=True)
class RunPage:
    """A page of runs."""

    runs: tuple[Run, ...]
    """Runs, newest first."""
    unreadable: tuple[UnreadableRun, ...] = ()
    """Runs that cannot be opened, on the first page."""
    next: str | None = None
    """Cursor of the next page; `None` on the last one."""


@dataclass(frozen=True)
class Item:
    """An item of a run: a trial of a job."""

    item: str
    """Its id."""
    name: str
    """`agent/dataset/task__attempt`."""
    agent_name: str
    """Agent."""
    dataset_name: str
    """Dataset."""
    task_name: str
    """Task."""
    attempt: int
    """Attempt, from 1."""
    state: ItemState
    """Its state."""
    tries: int
    """Tries so far."""
    passed: bool | None = None
    """Whether the reward is 1; `None` unless it is settled."""
    reward: float | None = None
    """Its reward; `None` without a verdict."""
    error: Mapping[str, Any] | None = None
    """Its error."""
    cost: float | None = None
    """Cost of all its executions, as far as it is known; `None` if nothing of it is."""
    cost_is_lower_bound: bool = False
    """Whether the cost of some model calls is not known."""
    worker: str | None = None
    """The worker that ran it, or runs it."""
    total_sec: float | None = None
    """Duration of the execution that settled it, seconds."""
    settled_at: datetime | None = None
    """When it was settled."""


@dataclass(frozen=True)
class ItemDetail(Item):
    """An item with its executions."""

    executions: tuple[Mapping[str, Any], ...] = ()
    """Its executions, as `rollout show RUN ITEM --json` prints them."""
    raw: Mapping[str, Any] | None = None
    """The whole document."""


@dataclass(frozen=True)
class ItemPage:
    """A page of items."""

    items: tuple[Item, ...]
    """Items, in the plan's order."""
    next: int | None = None
    """Cursor of the next page; `None` on the last one."""


@dataclass(frozen=True)
class Output:
    """A captured output of an item."""

    path: str
    """The `name` by which `logs` reads it."""
    size_bytes: int
    """Bytes that are kept."""
    total_bytes: int
    """Bytes that were written."""
    digest: str
    """Digest of its content: `sha256:` and 64 hexadecimal digits."""
    truncated: bool
    """Whether a part was left out."""


@dataclass(frozen=True)
class OutputList:
    """The captured outputs of an item."""

    outputs: tuple[Output, ...]
    """The outputs."""


@dataclass(frozen=True)
class Artifact:
    """An artifact of an item."""

    path: str
    """Its path, which identifies it in its item."""
    size_bytes: int
    """Size of its content, bytes."""
    digest: str
    """Digest of its content: `sha256:` and 64 hexadecimal digits."""
    truncated: bool
    """Whether something was left out."""


@dataclass(frozen=True)
class ArtifactList:
    """The artifacts of an item."""

    artifacts: tuple[Artifact, ...]
    """The artifacts."""


@dataclass(frozen=True)
class Problem:
    """The document of an error (RFC 9457)."""

    type: str
    """Kind of the problem: `urn:rollout:problem:` and a word."""
    title: str
    """The phrase of the status."""
    status: int
    """The status of the answer."""
    detail: str
    """The failed operation and its cause."""
    code: int
    """The exit code that the command line has for this error."""
    details: tuple[str, ...]
    """Details, one line each."""
    hints: tuple[str, ...]
    """Suggested actions."""
    request_id: str
    """The id of the request, as in the log of the server."""
    limit: str | None = None
    """Of a farm that is full: the limit."""
    depth: int | None = None
    """Of a farm that is full: how much it holds."""
    max: int | None = None
    """Of a farm that is full: how much it may hold."""


@dataclass(frozen=True)
class Event:
    """A durable event of a run."""

    seq: int
    """Its number. Numbers of a run rise; they are the same after a restart."""
    kind: str
    """Its kind, such as `trial_settled`."""
    data: Mapping[str, Any]
    """The object that `rollout events --json` prints."""


@dataclass(frozen=True)
class Export:
    """An export of a run that was written to a file."""

    path: Path
    """The file."""
    missing: int
    """Settled trials that are left out because their records are not written yet."""
    unplanned: int
    """Settled trials that are left out because they are no longer in the plan."""
    keys_left_out: bool
    """Whether there are more keys of rewards than columns."""
    without_trajectory: int = 0
    """Trials without a trajectory, for formats that have them."""
    below_reward: int = 0
    """Trials that are left out because they have no reward, or too small a one."""
    paths_left_out: int = 0
    """Files and directories that are left out of an archive, because their paths are too deep or
    too long for one. A directory counts once. 0 if a server of an earlier version does not say."""
