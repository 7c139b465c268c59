"""Documents of executors as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

TrialState = Literal["queued", "running", "waiting", "settled"]
"""State of a started trial."""

ControlAction = Literal["stop", "checkpoint", "continue"]
"""What a control asks a harness for."""

ControlResult = Literal[
    "acknowledged",
    "unacknowledged",
    "unsupported_for_integration_level",
    "not_in_command",
    "refused",
]
"""Result of a control."""


@dataclass(frozen=True)
class TrialName:
    """Name of a trial."""

    agent: str
    """Agent."""
    dataset: str
    """Dataset."""
    task: str
    """Task."""
    attempt: int
    """Attempt, from 1."""

    def __str__(self) -> str:
        """Return `agent/dataset/task__attempt`."""
        return f"{self.agent}/{self.dataset}/{self.task}__{self.attempt}"


@dataclass(frozen=True)
class TrialSpec:
    """The documents that a trial runs under, by digest."""

    settings: str
    """Settings."""
    agent: str
    """Agent."""
    task: str
    """Task."""
    attempt: int
    """Attempt, from 1."""


@dataclass(frozen=True)
class PlannedTrial:
    """A trial that can be started."""

    item: str
    """Identifies the trial in the run."""
    trial: TrialName
    """Its name."""
    spec: TrialSpec
    """The documents that it runs under."""


@dataclass(frozen=True)
class PlannedTrialList:
    """A page of trials that can be started."""

    trials: tuple[PlannedTrial, ...]
    """Trials, in the plan's order."""
    next: int | None = None
    """Cursor of the next page; `None` on the last one."""


@dataclass(frozen=True)
class TrialHandle:
    """A trial that was started."""

    run: str
    """Id of the run in its journal."""
    item: str
    """Identifies the trial in the run."""
    trial: TrialName
    """Its name."""


TrialRef: TypeAlias = "str | PlannedTrial | TrialHandle"
"""A trial of an executor, or its id."""


@dataclass(frozen=True)
class TrialStatus:
    """Status of a started trial."""

    state: TrialState
    """Its state."""
    raw: Mapping[str, Any]
    """The whole document."""
    exec: str | None = None
    """While it runs: the execution."""
    phase: str | None = None
    """While it runs: the phase of the execution."""
    error: Mapping[str, Any] | None = None
    """While it waits for another execution: why the last one failed."""
    next_try_at: datetime | None = None
    """While it waits for another execution: when that begins."""
    settlement: Mapping[str, Any] | None = None
    """Its terminal record, once it is settled."""

    @property
    def try_id(self) -> str | None:
        """The try, while it runs."""
        found: str | None = self.raw.get("try")
        return found

    @property
    def is_settled(self) -> bool:
        """Whether it has its result."""
        return self.settlement is not None

    @property
    def outcome(self) -> str | None:
        """How it ended, such as `completed`; `None` before it is settled."""
        found: str | None = self._verdict().get("outcome")
        return found

    @property
    def reward(self) -> float | None:
        """Its reward; `None` without a verdict."""
        found: float | None = self._verdict().get("reward")
        return found

    def _verdict(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = (self.settlement or {}).get("verdict") or {}
        return found


@dataclass(frozen=True)
class TrialEvent:
    """An event of the harness of a trial.

    It replaces every earlier event with the same or a higher number: numbers begin again with
    another execution.
    """

    exec: str
    """The execution."""
    number: int
    """Its number in the execution, from 0."""
    event: Mapping[str, Any]
    """The event, as the harness wrote it."""
    step: str | None = None
    """Step of the task, if the task has steps."""

    @property
    def kind(self) -> str:
        """Its type, such as `agent_step_start`."""
        return str(self.event.get("event_type", ""))


@dataclass(frozen=True)
class ControlReceipt:
    """The answer of a worker to a control."""

    item: str
    """Trial."""
    exec: str
    """Execution."""
    worker: str
    """Worker."""
    action: ControlAction
    """The requested action."""
    result: ControlResult
    """What became of it."""
    raw: Mapping[str, Any]
    """The whole document."""
    control: Mapping[str, Any] | None = None
    """The control that was written, with the harness's acknowledgement."""
    command_ended: bool | None = None
    """Of an unacknowledged control: whether the agent's command ended during the wait."""
    phase: str | None = None
    """Of a trial whose agent's command does not run: its phase."""
    reason: str | None = None
    """Why it was refused."""


@dataclass(frozen=True)
class OutputReference:
    """Reference to the output of a trial."""

    uri: str
    """`cas://` and the digest."""
    digest: str
    """Digest of the content: `sha256:` and 64 hexadecimal digits."""
    size_bytes: int
    """Size of the content, bytes."""
    output_type: str
    """`trial_output_v1`, the document of a harness, or `trial_record`."""
    media_type: str | None = None
    """Media type of the content."""


@dataclass(frozen=True)
class ArtifactReference:
    """Reference to captured output, a log or a kept file of a trial."""

    uri: str
    """`cas://` and the digest."""
    digest: str
    """Digest of the content: `sha256:` and 64 hexadecimal digits."""
    size_bytes: int
    """Size of the content, bytes."""
    artifact_type: str
    """`workspace_diff`, `log`, `trace` or `custom`."""
    path: str
    """Path below the trial's directory, which identifies it in its trial."""
    truncated: bool
    """Whether something was left out."""
    media_type: str | None = None
    """Media type of the content; `application/x-tar` for several files."""


ContentReference: TypeAlias = "str | OutputReference | ArtifactReference"
"""A reference to content, or its digest."""


@dataclass(frozen=True)
class OutputReferenceList:
    """The output of a settled trial."""

    output: OutputReference | None = None
    """A reference; `None` if the settlement has everything."""


@dataclass(frozen=True)
class ArtifactReferenceList:
    """The artifacts of a settled trial."""

    artifacts: tuple[ArtifactReference, ...]
    """References."""
