"""Every operation of executors as a program: calls, pages, waiting, events, content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from . import _executor_operations as operations
from ._decode import decode, read_object
from ._effects import Close, Emit, Lost, Open, Program, Read, Sleep
from ._operations import Request, RunRef, build
from ._programs import Context, attempt, back_off, fetch
from ._retry import RetryClock
from ._sse import ServerEvent, SseParser
from .errors import ContentError, EventStreamError, TrialWaitTimeoutError, UnavailableError
from .executor_models import (
    ArtifactReference,
    ArtifactReferenceList,
    ContentReference,
    OutputReference,
    OutputReferenceList,
    PlannedTrialList,
    TrialEvent,
    TrialRef,
    TrialStatus,
)

_FIRST_LOOK_SEC = 0.1
_LONGEST_PAUSE_SEC = 5.0

# Errors of a stream after which it can be opened again: the session of the run has ended.
_PASSING_KINDS = ("not-open", "unavailable")


def planned(context: Context, run: RunRef, page_size: int | None) -> Program[None]:
    """Emit the trials of all pages."""
    cursor = None
    while True:
        query = {"limit": page_size, "cursor": cursor}
        request = build(operations.PLANNED, {"id": run}, query=query)
        page = yield from fetch(context, request, PlannedTrialList)
        for trial in page.trials:
            yield Emit(trial)
        cursor = page.next
        if cursor is None:
            return


def status(context: Context, run: RunRef, trial: TrialRef) -> Program[TrialStatus]:
    """Show the status of a trial."""
    request = operations.about(operations.STATUS, run, trial)
    return (yield from fetch(context, request, TrialStatus))


def wait(
    context: Context, run: RunRef, trial: TrialRef, timeout_sec: float | None
) -> Program[TrialStatus]:
    """Look at a trial until it is settled."""
    longest = float("inf") if timeout_sec is None else timeout_sec
    began, pause = context.clock(), _FIRST_LOOK_SEC
    while True:
        left = max(0.0, began + longest - context.clock())
        policy = replace(context.policy, total_sec=min(context.policy.total_sec, left))
        look = replace(context, policy=policy, waits_for_start=False)
        found: TrialStatus | None = None
        try:
            found = yield from status(look, run, trial)
        except UnavailableError as error:
            if error.kind != "not-open":
                raise
        if found is not None and found.is_settled:
            return found
        left = began + longest - context.clock()
        if left <= 0:
            state = "its run waits for its start" if found is None else f"it is {found.state}"
            name = operations.trial_id(trial)
            raise TrialWaitTimeoutError(f"cannot wait longer for {name}: {state}", found)
        yield Sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SEC)


def output(context: Context, run: RunRef, trial: TrialRef) -> Program[OutputReference | None]:
    """Show the reference to the output of a trial."""
    request = operations.about(operations.OUTPUT, run, trial)
    return (yield from fetch(context, request, OutputReferenceList)).output


def artifacts(
    context: Context, run: RunRef, trial: TrialRef
) -> Program[tuple[ArtifactReference, ...]]:
    """List the references to the artifacts of a trial."""
    request = operations.about(operations.ARTIFACTS, run, trial)
    return (yield from fetch(context, request, ArtifactReferenceList)).artifacts


def read(context: Context, run: RunRef, content: ContentReference) -> Program[None]:
    """Emit the pieces of the content of a reference, and check their digest."""
    expected, hasher = operations.digest_of(content), hashlib.sha256()
    request = operations.blob_request(run, content)
    # A lost connection begins again after the bytes that were emitted.
    clock, emitted = RetryClock(context.policy), 0
    while True:
        yield from attempt(context, request, Open(request))
        lost, skip = None, emitted
        while True:
            piece: bytes | Lost | None = yield Read()
            if piece is None or isinstance(piece, Lost):
                lost = piece
                break
            skipped = min(skip, len(piece))
            skip -= skipped
            piece = piece[skipped:]
            if piece:
                clock.succeeded()
                hasher.update(piece)
                emitted += len(piece)
                yield Emit(piece)
        yield Close()
        if lost is None:
            break
        yield from back_off(context, clock, request, lost)
    found = f"sha256:{hasher.hexdigest()}"
    if found != expected:
        raise ContentError(f"cannot use the content of {expected}: its digest is {found}")


def events(context: Context, run: RunRef, trial: TrialRef, from_number: int) -> Program[None]:
    """Emit the events of a trial from a number on until it is settled.

    A stream that is opened again begins at its beginning, because another execution may have begun
    meanwhile. Events that it repeats are not emitted again.
    """
    request = operations.events_request(run, trial, from_number)
    clock, emitted = RetryClock(context.policy), EmittedEvents()
    while True:
        yield from attempt(context, request, Open(request))
        emitted.begin_again()
        end = yield from _one_stream(request, clock, emitted)
        yield Close()
        if end is None and emitted.has_all():
            return
        if end is None:
            # The record has fewer events than were emitted: all of them are emitted again.
            emitted = EmittedEvents()
        else:
            yield from back_off(context, clock, request, end)


def _one_stream(
    request: Request, clock: RetryClock, emitted: EmittedEvents
) -> Program[Lost | None]:
    """Emit the new events of a stream. Returns why it broke off; `None` at its end."""
    parser = SseParser()
    while True:
        piece: bytes | Lost | None = yield Read()
        if piece is None:
            return Lost("the stream ended before the trial did", may_have_arrived=True)
        if isinstance(piece, Lost):
            return piece
        # Signs of life count too: a trial may have no events for hours.
        clock.succeeded()
        for received in parser.feed(piece):
            if received.kind == "end":
                return None
            if received.kind == "error":
                return _passing_error(received, request)
            event = decode(TrialEvent, read_object(received.data, "an event"))
            if emitted.is_new(event, received.data):
                yield Emit(event)


def _passing_error(received: ServerEvent, request: Request) -> Lost:
    """Return an error after which the stream can be opened again, or raise it."""
    data = read_object(received.data, "an error")
    message = str(data.get("detail", data))
    if data.get("kind") in _PASSING_KINDS:
        return Lost(message, may_have_arrived=True)
    raise EventStreamError(f"cannot read the events of {request.path}: {message}")


@dataclass
class EmittedEvents:
    """The events of a trial that were emitted, as far as they count."""

    exec: str | None = None
    """The execution of them all."""
    events: list[tuple[int, bytes]] = field(default_factory=list)
    """Number and digest of each event."""
    compared: int | None = None
    """The next event to compare with, while the stream repeats what was emitted."""

    def begin_again(self) -> None:
        """Note that the stream begins again."""
        self.compared = 0 if self.events else None

    def is_new(self, event: TrialEvent, data: str) -> bool:
        """Note an event of the stream. Return whether it was not emitted before."""
        entry = (event.number, hashlib.sha256(data.encode()).digest()[:8])
        if self.compared is not None:
            at, self.compared = self.compared, None
            is_repeated = self.exec == event.exec and self.events[at : at + 1] == [entry]
            if is_repeated:
                self.compared = at + 1
                return False
            del self.events[at:]
        if self.exec != event.exec:
            self.exec = event.exec
            self.events.clear()
        while self.events and self.events[-1][0] >= event.number:
            self.events.pop()
        self.events.append(entry)
        return True

    def has_all(self) -> bool:
        """Return whether the stream has repeated everything that was emitted."""
        return self.compared is None or self.compared == len(self.events)
