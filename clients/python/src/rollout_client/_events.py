"""Events of a run: a stream that continues after a lost connection or a restart of the server."""

from __future__ import annotations

from . import _operations as operations
from ._decode import read_object
from ._effects import Close, Emit, Lost, Open, Program, Read
from ._operations import Request, RunRef, identify
from ._programs import Context, attempt, back_off
from ._retry import RetryClock
from ._sse import ServerEvent, SseParser
from .errors import AnswerError, EventStreamError
from .models import Event


def events(context: Context, run: RunRef, after: int) -> Program[None]:
    """Emit every event after a number, each once and in order, until the run has stopped."""
    last, clock = after, RetryClock(context.policy)
    while True:
        request = events_request(run, last)
        yield from attempt(context, request, Open(request))
        parser = SseParser()
        lost = Lost("the stream ended before the run did", may_have_arrived=True)
        while True:
            piece: bytes | Lost | None = yield Read()
            if piece is None or isinstance(piece, Lost):
                lost = piece or lost
                break
            # Signs of life count too: a run may have no events for hours.
            clock.succeeded()
            for received in parser.feed(piece):
                if received.kind == "end":
                    yield Close()
                    return
                event = read_event(received, run)
                if event.seq > last:
                    last = event.seq
                    yield Emit(event)
        yield Close()
        yield from back_off(context, clock, request, lost)


def events_request(run: RunRef, after: int) -> Request:
    """Make the request for the events after a number."""
    headers = {"last-event-id": str(after)}
    return operations.build(operations.EVENTS, {"id": run}, headers=headers)


def read_event(received: ServerEvent, run: RunRef) -> Event:
    """Read an event.

    Raises:
        EventStreamError: The server cannot read the events.
        AnswerError: It is no event of this API.
    """
    data = read_object(received.data, "an event")
    if received.kind == "error":
        raise EventStreamError(
            f"cannot read the events of {identify(run)}: {data.get('message', data)}"
        )
    if not (received.last_id.isascii() and received.last_id.isdigit()):
        raise AnswerError(f"cannot read an event: {received.last_id!r} is no number")
    return Event(seq=int(received.last_id), kind=received.kind, data=data)
