"""Operations of the API, and the requests that call them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from ._retry import Safety
from .models import Item, Run, SubmissionKind

JobDocument: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str]"
"""A job: its document, its text in YAML, or the path of its file."""


RunRef: TypeAlias = "str | Run"
"""A run or its id."""

ItemRef: TypeAlias = "str | Item"
"""An item, its id, its name, or a part of its name that no other item of the run has."""


@dataclass(frozen=True)
class Operation:
    """An operation of the API."""

    method: str
    """Method of HTTP."""
    path: str
    """Its path; `{name}` stands for an argument."""
    query: tuple[str, ...] = ()
    """Parameters that the client can send."""
    headers: tuple[str, ...] = ()
    """Headers that the client can send, in lower case."""
    fields: tuple[str, ...] = ()
    """Keys of the JSON body."""
    accept: str = "application/json"
    """Media types of the answer."""
    safety: Safety = Safety.ALWAYS
    """When a request may be repeated."""
    is_stream: bool = False
    """Whether its answer may last longer than any time limit of an answer."""


_RUN = "/v1/runs/{id}"
_ITEM = f"{_RUN}/items/{{item}}"

SUBMIT = Operation(
    "POST",
    "/v1/runs",
    headers=("idempotency-key",),
    fields=("kind", "document", "name", "priority"),
    safety=Safety.IF_REFUSED,
)
RUNS = Operation("GET", "/v1/runs", query=("state", "user", "name", "limit", "cursor"))
RUN = Operation("GET", _RUN)
CANCEL = Operation("POST", f"{_RUN}/cancel")
PAUSE = Operation("POST", f"{_RUN}/pause")
RESUME = Operation("POST", f"{_RUN}/continue")
DELETE = Operation("DELETE", _RUN)
EVENTS = Operation(
    "GET",
    f"{_RUN}/events",
    query=("after",),
    headers=("last-event-id",),
    accept="text/event-stream",
    is_stream=True,
)
ITEMS = Operation("GET", f"{_RUN}/items", query=("state", "agent", "task", "limit", "cursor"))
ITEM = Operation("GET", _ITEM)
OUTPUTS = Operation("GET", f"{_ITEM}/outputs")
LOGS = Operation(
    "GET", f"{_ITEM}/logs", query=("name", "try", "follow"), accept="text/plain", is_stream=True
)
ARTIFACTS = Operation("GET", f"{_ITEM}/artifacts")
ARTIFACT = Operation("GET", f"{_ITEM}/artifact", query=("path",), accept="application/octet-stream")
EXPORT = Operation(
    "GET",
    f"{_RUN}/export",
    query=("format", "min_reward"),
    accept="application/jsonl, text/csv, application/x-tar, application/octet-stream",
    is_stream=True,
)
SEARCH = Operation("GET", f"{_RUN}/search")
DATASET = Operation("GET", "/v1/datasets/{digest}")
UPLOAD = Operation("PUT", "/v1/datasets/{digest}", is_stream=True)

OPERATIONS = (
    *(SUBMIT, RUNS, RUN, CANCEL, PAUSE, RESUME, DELETE, EVENTS),
    *(ITEMS, ITEM, OUTPUTS, LOGS, ARTIFACTS, ARTIFACT, EXPORT, SEARCH, DATASET, UPLOAD),
)
"""Every operation."""


@dataclass(frozen=True)
class Request:
    """A request. Every attempt sends the same bytes."""

    method: str
    """Method of HTTP."""
    path: str
    """Path and query, encoded."""
    headers: Mapping[str, str]
    """Headers, with the id of the request."""
    body: bytes | None
    """Body."""
    safety: Safety
    """When it may be repeated."""
    is_endless: bool
    """Whether its answer may pause for any time."""
    file: Path | None = None
    """File with its body, in place of `body`."""
    wait_sec: float = 0.0
    """Seconds that the server may wait before it answers."""

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.headers["x-request-id"]


def build(
    operation: Operation,
    arguments: Mapping[str, RunRef | ItemRef] | None = None,
    *,
    query: Mapping[str, str | float | bool | None] | None = None,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    safety: Safety | None = None,
) -> Request:
    """Make the request that calls an operation. Parameters that are `None` are left out.

    Raises:
        ValueError: An argument cannot be a part of a path, or a body cannot be JSON.
    """
    quoted = {name: _segment(name, value) for name, value in (arguments or {}).items()}
    path = operation.path.format(**quoted)
    sent = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    unknown = (sent.keys() - set(operation.query)) | (
        (headers or {}).keys() - set(operation.headers)
    )
    if unknown:
        raise ValueError(f"cannot call {operation.path}: it has no parameter {sorted(unknown)}")
    if sent:
        path = f"{path}?{urlencode(sent, quote_via=quote)}"
    encoding = {} if operation.accept == "application/json" else {"accept-encoding": "identity"}
    all_headers = {
        **encoding,
        "accept": f"{operation.accept}, application/problem+json",
        "x-request-id": uuid.uuid4().hex,
        **(headers or {}),
    }
    content = None
    if body is not None:
        all_headers["content-type"] = "application/json"
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    return Request(
        method=operation.method,
        path=path,
        headers=all_headers,
        body=content,
        safety=safety or operation.safety,
        is_endless=operation.is_stream,
    )


def identify(reference: RunRef | ItemRef) -> str:
    """Return the text by which the server finds a run or an item."""
    if isinstance(reference, Run):
        return reference.id
    return reference.item if isinstance(reference, Item) else reference


def _segment(name: str, reference: RunRef | ItemRef) -> str:
    value = identify(reference)
    # Clients resolve `.` and `..` before they send a path.
    if value in ("", ".", ".."):
        raise ValueError(f"cannot use {value!r} as {name}")
    return quote(value, safe="")


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def submission(
    document: JobDocument,
    *,
    kind: SubmissionKind,
    name: str | None,
    priority: int,
    idempotency_key: str | None,
) -> Request:
    """Make the request that submits a run.

    Without a key it gets a random one. With an empty key it is sent without, and is then repeated
    only if the server has certainly refused it.

    Raises:
        ValueError: The document is no job document.
        OSError: The file cannot be read.
    """
    body: dict[str, Any] = {"kind": kind, "document": job_text(document), "priority": priority}
    if name is not None:
        body["name"] = name
    key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
    if not key:
        return build(SUBMIT, body=body)
    return build(SUBMIT, headers={"idempotency-key": key}, body=body, safety=Safety.ALWAYS)


def upload(digest: str, archive: Path, size_bytes: int) -> Request:
    """Make the request that uploads the archive of a dataset."""
    request = build(UPLOAD, {"digest": digest})
    headers = {"content-type": "application/x-tar", "content-length": str(size_bytes)}
    return replace(request, headers={**request.headers, **headers}, file=archive)


def job_text(document: JobDocument) -> Mapping[str, Any] | str:
    """Return a job as it is sent: its document, or its text.

    Raises:
        ValueError: The document is no job document.
        OSError: The file cannot be read.
    """
    if isinstance(document, os.PathLike):
        return Path(document).read_text(encoding="utf-8")
    if isinstance(document, str) and ":" not in document:
        raise ValueError(
            f"cannot submit {document[:80]!r}: it is no job; pass a pathlib.Path for a file"
        )
    return document
