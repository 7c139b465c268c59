"""Operations of executors, and the requests that call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ._operations import Operation, Request, RunRef, build
from ._retry import Safety
from .executor_models import (
    ArtifactReference,
    ContentReference,
    ControlAction,
    OutputReference,
    PlannedTrial,
    TrialRef,
)

_RUN = "/v1/runs/{id}"
_TRIAL = f"{_RUN}/trials/{{item}}"

# How much longer than the harness the server may take to answer a control, seconds.
_CONTROL_MARGIN_SEC = 90.0

PLANNED = Operation("GET", f"{_RUN}/trials", query=("limit", "cursor"))
START = Operation("POST", f"{_RUN}/trials", fields=("trial", "spec"))
STATUS = Operation("GET", _TRIAL)
EVENTS = Operation(
    "GET", f"{_TRIAL}/events", query=("from",), accept="text/event-stream", is_stream=True
)
CONTROL = Operation(
    "POST",
    f"{_TRIAL}/control",
    fields=("action", "label", "requested_by", "timeout_ms", "grace_ms"),
    safety=Safety.IF_REFUSED,
)
CANCEL = Operation("POST", f"{_TRIAL}/cancel")
OUTPUT = Operation("GET", f"{_TRIAL}/output")
ARTIFACTS = Operation("GET", f"{_TRIAL}/artifacts")
BLOB = Operation(
    "GET", f"{_RUN}/blobs/{{digest}}", accept="application/octet-stream", is_stream=True
)
FINISH = Operation("POST", f"{_RUN}/finish")

EXECUTOR_OPERATIONS = (
    *(PLANNED, START, STATUS, EVENTS, CONTROL, CANCEL, OUTPUT, ARTIFACTS, BLOB, FINISH),
)
"""Every operation of executors."""


def trial_id(trial: TrialRef) -> str:
    """Return the id of a trial."""
    return trial if isinstance(trial, str) else trial.item


def about(operation: Operation, run: RunRef, trial: TrialRef) -> Request:
    """Make the request that asks something about a trial."""
    return build(operation, {"id": run, "item": trial_id(trial)})


def start_request(run: RunRef, planned: PlannedTrial) -> Request:
    """Make the request that starts a trial."""
    body = {"trial": asdict(planned.trial), "spec": asdict(planned.spec)}
    return build(START, {"id": run}, body=body)


def control_request(
    run: RunRef,
    trial: TrialRef,
    action: ControlAction,
    *,
    timeout_sec: float,
    grace_sec: float,
    **options: str | None,
) -> Request:
    """Make the request that sends a control. Its answer may take as long as the harness."""
    body: dict[str, Any] = {
        "action": action,
        "timeout_ms": round(timeout_sec * 1000),
        "grace_ms": round(grace_sec * 1000),
    }
    body.update((name, value) for name, value in options.items() if value is not None)
    request = build(CONTROL, {"id": run, "item": trial_id(trial)}, body=body)
    return replace(request, wait_sec=timeout_sec + _CONTROL_MARGIN_SEC)


def blob_request(run: RunRef, content: ContentReference) -> Request:
    """Make the request that reads the content of a reference."""
    return build(BLOB, {"id": run, "digest": digest_of(content)})


def digest_of(content: ContentReference) -> str:
    """Return the digest of a reference."""
    if isinstance(content, (OutputReference, ArtifactReference)):
        return content.digest
    return content


def events_request(run: RunRef, trial: TrialRef, from_number: int) -> Request:
    """Make the request for the events of a trial from a number on."""
    query: Mapping[str, int] = {"from": from_number}
    return build(EVENTS, {"id": run, "item": trial_id(trial)}, query=query)
