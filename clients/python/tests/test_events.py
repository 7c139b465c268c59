"""The stream of events of a run."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_client import _events, errors
from script import CUT, OPENED, REFUSED, Script, problem


def event(seq: int) -> bytes:
    return f'id: {seq}\nevent: e\ndata: {{"seq": {seq}}}\n\n'.encode()


END = b"event: end\ndata: {}\n\n"


def streamed(script: Script, after: int = 0) -> list[int]:
    script.run(_events.events(script.context, "r1", after))
    return [event.seq for event in script.emitted]


def positions(script: Script) -> list[str]:
    return [request.headers["last-event-id"] for request in script.requests]


def test_stream_ends_with_the_run() -> None:
    script = Script([OPENED, event(1) + event(4)[:9], event(4)[9:], END + event(5)])
    assert streamed(script) == [1, 4]
    assert script.emitted[0].data == {"seq": 1}


def test_lost_stream_continues_after_the_last_event() -> None:
    answers: list[Any] = [OPENED, event(6) + event(7)[:12], CUT, REFUSED, problem(503, "stopping")]
    answers += [OPENED, event(7), None, OPENED, event(8), END]
    script = Script(answers)
    assert streamed(script, after=5) == [6, 7, 8]
    assert positions(script) == ["5", "6", "6", "6", "7"]


def test_event_that_comes_twice_is_emitted_once() -> None:
    script = Script([OPENED, event(1) + event(2), CUT, OPENED, event(1) + event(2) + event(3), END])
    assert streamed(script) == [1, 2, 3]


def test_quiet_stream_outlives_any_number_of_connections() -> None:
    quiet: list[Any] = []
    for _ in range(50):
        quiet += [OPENED, (600.0, b":\n\n"), CUT]
    script = Script([*quiet, OPENED, event(1) + END])
    assert streamed(script) == [1]


def test_streams_without_a_byte_end_with_the_policy() -> None:
    with pytest.raises(errors.TransportError, match="the stream ended before the run did"):
        streamed(Script([OPENED, None] * 100))


def test_deleted_run_ends_the_stream_with_an_error() -> None:
    script = Script([OPENED, event(1), CUT, problem(404, "not-found")])
    with pytest.raises(errors.NotFoundError):
        streamed(script)
    assert len(script.emitted) == 1


def test_error_of_the_server_ends_the_stream() -> None:
    error = b'event: error\ndata: {"message": "cannot read the journal"}\n\n'
    with pytest.raises(errors.EventStreamError, match="cannot read the journal"):
        streamed(Script([OPENED, error]))


@pytest.mark.parametrize("wrong", [b"data: {}\n\n", b"id: 1\ndata: x\n\n", b"id: x\ndata: {}\n\n"])
def test_event_of_something_else_is_an_error(wrong: bytes) -> None:
    with pytest.raises(errors.AnswerError):
        streamed(Script([OPENED, wrong]))
