"""Operations of farms, and the requests that call them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ._operations import JobDocument, Operation, Request, build, job_text
from ._retry import Safety
from .farm_models import (
    CompletedGroup,
    Completion,
    CompletionRef,
    GroupPolicy,
    GroupRef,
    GroupStatus,
    InlineTask,
    ModelEndpoint,
    SubmittedGroup,
)

_FARM = "/v1/farms/{id}"
_GROUP = f"{_FARM}/groups/{{group}}"
_COMPLETION = f"{_FARM}/completions/{{cursor}}"

# The server takes so many at once.
_MAX_CURSORS = 4096

CREATE = Operation(
    "POST",
    "/v1/farms",
    headers=("idempotency-key",),
    fields=("name", "document", "settings", "priority"),
    safety=Safety.IF_REFUSED,
)
FARMS = Operation("GET", "/v1/farms", query=("state", "user", "name", "limit", "cursor"))
FARM = Operation("GET", _FARM)
DELETE = Operation("DELETE", _FARM)
SUBMIT = Operation(
    "POST",
    f"{_FARM}/groups",
    fields=(
        *("group", "task", "n", "policy_version", "model", "sampling", "priority"),
        *("deadline_sec", "group_policy", "max_refills", "min_usable", "consumer", "metadata"),
    ),
)
GROUP = Operation("GET", _GROUP)
CANCEL = Operation("POST", f"{_GROUP}/cancel")
COMPLETIONS = Operation("GET", f"{_FARM}/completions", query=("consumer", "after", "limit", "wait"))
RECORD = Operation("GET", f"{_COMPLETION}/record")
CALLS = Operation("GET", f"{_COMPLETION}/calls")
ACKNOWLEDGE = Operation("POST", f"{_FARM}/ack", fields=("consumer", "cursors"))
POLICY = Operation("POST", f"{_FARM}/policy", fields=("version",))
PAUSE = Operation("POST", f"{_FARM}/pause")
RESUME = Operation("POST", f"{_FARM}/resume", fields=("version",))
CLOSE = Operation("POST", f"{_FARM}/close")

FARM_OPERATIONS = (
    *(CREATE, FARMS, FARM, DELETE, SUBMIT, GROUP, CANCEL, COMPLETIONS, RECORD, CALLS),
    *(ACKNOWLEDGE, POLICY, PAUSE, RESUME, CLOSE),
)
"""Every operation of farms."""


@dataclass(frozen=True)
class Window:
    """The completions that an iterator reads."""

    farm: str
    consumer: str | None
    after: int
    page_size: int
    wait_sec: int


def creation(
    name: str,
    document: JobDocument,
    *,
    settings: Mapping[str, Any],
    priority: int,
    idempotency_key: str | None,
) -> Request:
    """Make the request that opens a farm. Keys are as in submissions of jobs.

    Raises:
        ValueError: The document is no job document.
        OSError: The file cannot be read.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    body: dict[str, Any] = {"name": name, "document": job_text(document)}
    body.update(settings=given, priority=priority)
    key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
    if not key:
        return build(CREATE, body=body)
    return build(CREATE, headers={"idempotency-key": key}, body=body, safety=Safety.ALWAYS)


def group_request(
    farm: str,
    task: str | InlineTask,
    n: int,
    *,
    group: str | None,
    model: ModelEndpoint | None,
    group_policy: GroupPolicy | None,
    **options: Any,
) -> tuple[str, Request]:
    """Make the request for a group, and return its id with it. Without an id it gets a random one.

    Every attempt has the same id, so the farm admits one group.
    """
    group = uuid.uuid4().hex if group is None else group
    choice = {"named": task} if isinstance(task, str) else {"inline": asdict(task)}
    body: dict[str, Any] = {"group": group, "task": choice, "n": n, "group_policy": group_policy}
    body["model"] = None if model is None else _without_none(asdict(model))
    return group, build(SUBMIT, {"id": farm}, body=_without_none({**body, **options}))


def completions(window: Window) -> Request:
    """Make the request for a page of completions. Its answer may take as long as it waits."""
    query = {
        "consumer": window.consumer,
        "after": window.after,
        "limit": window.page_size,
        "wait": window.wait_sec,
    }
    request = build(COMPLETIONS, {"id": window.farm}, query=query)
    return replace(request, wait_sec=window.wait_sec)


def acknowledgements(
    farm: str, taken: Iterable[CompletionRef | CompletedGroup], consumer: str | None
) -> list[tuple[list[int], Request]]:
    """Make the requests that acknowledge completions of each consumer, with their cursors."""
    cursors: dict[str | None, list[int]] = {}
    for one in taken:
        if isinstance(one, CompletedGroup):
            for completion in one.completions:
                cursors.setdefault(completion.consumer, []).append(completion.cursor)
        elif isinstance(one, Completion):
            cursors.setdefault(one.consumer, []).append(one.cursor)
        else:
            cursors.setdefault(consumer, []).append(one)
    requests = []
    for owner, all_of_it in cursors.items():
        for begin in range(0, len(all_of_it), _MAX_CURSORS):
            part = all_of_it[begin : begin + _MAX_CURSORS]
            body = _without_none({"consumer": owner, "cursors": part})
            requests.append((part, build(ACKNOWLEDGE, {"id": farm}, body=body)))
    return requests


def group_id(group: GroupRef) -> str:
    """Return the id of a group."""
    if isinstance(group, (SubmittedGroup, GroupStatus, CompletedGroup)):
        return group.group
    return group


def cursor(completion: CompletionRef) -> str:
    """Return the cursor of a completion as a part of a path."""
    return str(completion.cursor if isinstance(completion, Completion) else completion)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
