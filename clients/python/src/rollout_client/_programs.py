"""Every operation as a program: calls with retries, pages, waiting, output."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from . import _operations as operations
from ._answers import error_of, fault_of, waits_for_start
from ._decode import decode, read_object
from ._effects import Close, Emit, Lost, Open, Program, Read, Reply, Send, Sleep
from ._operations import ItemRef, Operation, Request, RunRef, identify
from ._retry import RetryClock, RetryPolicy, Safety
from .errors import WaitTimeoutError
from .models import (
    Artifact,
    ArtifactList,
    ExportFormat,
    ItemDetail,
    ItemPage,
    Output,
    OutputList,
    Run,
    RunPage,
)
from .search_models import SearchOverview

D = TypeVar("D")

_FIRST_LOOK_SEC = 0.1
_LONGEST_PAUSE_SEC = 5.0


@dataclass(frozen=True)
class Context:
    """What a program takes from outside."""

    policy: RetryPolicy
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    waits_for_start: bool = True
    """Whether calls wait for as long as their run or farm waits for its start."""
    limits_start: bool = False
    """Whether they wait for that no longer than the policy says."""
    url: str = ""
    """URL of the server, for hints; empty if unknown."""


def attempt(context: Context, request: Request, effect: Send | Open) -> Program[Reply]:
    """Send a request until it is answered with success or may not be repeated."""
    clock = RetryClock(context.policy)
    may_be_done = False
    while True:
        answer: Reply | Lost = yield effect
        if isinstance(answer, Reply) and 200 <= answer.status < 300:
            return answer
        fault = fault_of(answer)
        if request.method == "DELETE" and may_be_done and fault.status == 404:
            # An attempt before has removed it, and its answer was lost.
            return Reply(status=204, headers={}, body=b"")
        may_be_done = may_be_done or not fault.may_retry(Safety.IF_REFUSED)
        yield from back_off(context, clock, request, answer)


def back_off(
    context: Context, clock: RetryClock, request: Request, answer: Reply | Lost
) -> Program[None]:
    """Wait before the next attempt, or raise the error of the last one."""
    if waits_for_start(answer):
        if not context.waits_for_start:
            raise error_of(answer, request, context.url)
        if not context.limits_start:
            clock.succeeded()
    delay = clock.delay(
        fault_of(answer), request.safety, now=context.clock(), chance=context.chance()
    )
    if delay is None:
        raise error_of(answer, request, context.url)
    yield Sleep(delay)


def call(context: Context, request: Request) -> Program[Reply]:
    """Call an operation whose answer is read at once."""
    return (yield from attempt(context, request, Send(request)))


def fetch(context: Context, request: Request, kind: type[D]) -> Program[D]:
    """Call an operation whose answer is a document."""
    reply = yield from call(context, request)
    return decode(kind, read_object(reply.body, f"the answer to {request.method} {request.path}"))


def fetch_run(context: Context, operation: Operation, run: RunRef) -> Program[Run]:
    """Show a run, or ask something of it."""
    return (yield from fetch(context, operations.build(operation, {"id": run}), Run))


def submit(context: Context, request: Request) -> Program[Run]:
    """Submit a job."""
    return (yield from fetch(context, request, Run))


def delete(context: Context, run: RunRef) -> Program[None]:
    """Delete a run."""
    yield from call(context, operations.build(operations.DELETE, {"id": run}))


def runs_page(context: Context, query: Mapping[str, str | int | None]) -> Program[RunPage]:
    """Read a page of runs."""
    return (yield from fetch(context, operations.build(operations.RUNS, query=query), RunPage))


def runs(context: Context, query: Mapping[str, str | int | None]) -> Program[None]:
    """Emit the runs of all pages."""
    cursor = None
    while True:
        page = yield from runs_page(context, {**query, "cursor": cursor})
        for run in page.runs:
            yield Emit(run)
        cursor = page.next
        if cursor is None:
            return


def items_page(
    context: Context, run: RunRef, query: Mapping[str, str | int | None]
) -> Program[ItemPage]:
    """Read a page of items."""
    request = operations.build(operations.ITEMS, {"id": run}, query=query)
    return (yield from fetch(context, request, ItemPage))


def items(context: Context, run: RunRef, query: Mapping[str, str | int | None]) -> Program[None]:
    """Emit the items of all pages."""
    cursor = None
    while True:
        page = yield from items_page(context, run, {**query, "cursor": cursor})
        for item in page.items:
            yield Emit(item)
        cursor = page.next
        if cursor is None:
            return


def item(context: Context, run: RunRef, item: ItemRef) -> Program[ItemDetail]:
    """Show an item."""
    request = operations.build(operations.ITEM, {"id": run, "item": item})
    return (yield from fetch(context, request, ItemDetail))


def outputs(context: Context, run: RunRef, item: ItemRef) -> Program[tuple[Output, ...]]:
    """List the captured outputs of an item."""
    request = operations.build(operations.OUTPUTS, {"id": run, "item": item})
    return (yield from fetch(context, request, OutputList)).outputs


def artifacts(context: Context, run: RunRef, item: ItemRef) -> Program[tuple[Artifact, ...]]:
    """List the artifacts of an item."""
    request = operations.build(operations.ARTIFACTS, {"id": run, "item": item})
    return (yield from fetch(context, request, ArtifactList)).artifacts


def wait(context: Context, run: RunRef, timeout_sec: float | None) -> Program[Run]:
    """Look at a run until it has stopped."""
    longest = float("inf") if timeout_sec is None else timeout_sec
    began, pause = context.clock(), _FIRST_LOOK_SEC
    while True:
        left = max(0.0, began + longest - context.clock())
        policy = replace(context.policy, total_sec=min(context.policy.total_sec, left))
        found = yield from fetch_run(replace(context, policy=policy), operations.RUN, run)
        if found.has_stopped:
            return found
        left = began + longest - context.clock()
        if left <= 0:
            message = f"cannot wait longer for {identify(run)}: it is {found.state}"
            raise WaitTimeoutError(message, found)
        yield Sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SEC)


def content(context: Context, request: Request) -> Program[None]:
    """Emit the pieces of an answer. One that is lost after its first piece is not begun again."""
    yield from attempt(context, request, Open(request))
    while True:
        piece: bytes | Lost | None = yield Read()
        if piece is None:
            break
        if isinstance(piece, Lost):
            raise error_of(piece, request, context.url)
        yield Emit(piece)
    yield Close()


def logs_request(
    run: RunRef, item: ItemRef, *, name: str | None, number: int | None, follow: bool
) -> Request:
    """Make the request that reads the output of an item."""
    query: dict[str, Any] = {"name": name, "try": number, "follow": follow or None}
    return operations.build(operations.LOGS, {"id": run, "item": item}, query=query)


def search(context: Context, run: RunRef) -> Program[SearchOverview]:
    """Show the overview of a search."""
    request = operations.build(operations.SEARCH, {"id": run})
    return (yield from fetch(context, request, SearchOverview))


def export_request(
    run: RunRef, export_format: ExportFormat, min_reward: float | None = None
) -> Request:
    """Make the request that exports the results of a run."""
    query = {"format": export_format, "min_reward": min_reward}
    return operations.build(operations.EXPORT, {"id": run}, query=query)


def artifact_request(run: RunRef, item: ItemRef, path: str) -> Request:
    """Make the request that reads an artifact."""
    arguments = {"id": run, "item": item}
    return operations.build(operations.ARTIFACT, arguments, query={"path": path})
