"""Calls of executors against a scripted server."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from rollout_client import RetryPolicy, errors
from rollout_client import _executor_operations as operations
from rollout_client import _executor_programs as programs
from rollout_client._programs import fetch
from rollout_client.executor_models import ControlReceipt
from script import CUT, OPENED, REFUSED, Script, answer, problem

CONTENT = b"first second"
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
END = b"event: end\ndata: {}\n\n"


def event(number: int, exec: str = "e1", text: str = "t") -> bytes:
    inner = {"event_type": text}
    document = {"exec": exec, "number": number, "step": None, "event": inner}
    return f"event: event\nid: {number}\ndata: {json.dumps(document)}\n\n".encode()


def failure(kind: str) -> bytes:
    return f'event: error\ndata: {{"kind": "{kind}", "detail": "why"}}\n\n'.encode()


def streamed(*answers: Any) -> list[tuple[str, int, str]]:
    script = Script(answers)
    script.run(programs.events(script.context, "r1", "i1", 0))
    return [(event.exec, event.number, event.kind) for event in script.emitted]


def test_call_waits_for_as_long_as_the_run_waits_for_its_start() -> None:
    waiting = [problem(503, "not-open")] * 500
    script = Script([*waiting, answer({"state": "queued"})])
    assert script.run(programs.status(script.context, "r1", "i1")).state == "queued"
    assert script.now > script.policy.total_sec
    stopping = Script([problem(503, "stopping")] * 500)
    with pytest.raises(errors.UnavailableError):
        stopping.run(programs.status(stopping.context, "r1", "i1"))


def test_wait_for_a_trial_ends_with_its_limit_while_the_run_waits_for_its_start() -> None:
    answers = iter([problem(503, "not-open")] * 500)
    for limit in (5.0, 300.0):
        script = Script(answers)
        with pytest.raises(errors.TrialWaitTimeoutError, match="waits for its start") as caught:
            script.run(programs.wait(script.context, "r1", "i1", limit))
        assert caught.value.status is None
        assert script.now == limit


def test_without_retries_a_run_that_waits_is_an_error() -> None:
    script = Script([problem(503, "not-open")], policy=RetryPolicy(total_sec=0))
    with pytest.raises(errors.UnavailableError):
        script.run(programs.status(script.context, "r1", "i1"))


def test_control_is_not_repeated_once_it_may_have_arrived() -> None:
    def sent(*answers: Any) -> int:
        script = Script(answers)
        request = operations.control_request("r1", "i1", "stop", timeout_sec=5, grace_sec=2)
        with pytest.raises(errors.RolloutError):
            script.run(fetch(script.context, request, ControlReceipt))
        body = json.loads(request.body or b"")
        assert body == {"action": "stop", "timeout_ms": 5000, "grace_ms": 2000}
        assert request.wait_sec > 5
        return len(script.requests)

    assert sent(CUT) == 1
    assert sent(problem(504, "no-answer")) == 1
    assert sent(REFUSED, CUT) == 2


def test_stream_that_is_opened_again_emits_nothing_twice() -> None:
    first = [OPENED, event(0) + event(1), CUT]
    found = streamed(*first, OPENED, event(0) + event(1) + event(2) + END)
    assert [number for _, number, _ in found] == [0, 1, 2]
    found = streamed(*first, REFUSED, OPENED, event(0) + event(1) + END)
    assert [number for _, number, _ in found] == [0, 1]
    found = streamed(OPENED, event(0) + failure("not-open"), OPENED, event(0) + event(1) + END)
    assert [number for _, number, _ in found] == [0, 1]


def test_event_of_another_execution_or_content_is_emitted() -> None:
    first = [OPENED, event(0) + event(1), CUT]
    found = streamed(*first, OPENED, event(0, "e2") + event(1, "e2") + END)
    assert found == [("e1", 0, "t"), ("e1", 1, "t"), ("e2", 0, "t"), ("e2", 1, "t")]
    found = streamed(*first, OPENED, event(0) + event(1, text="other") + END)
    assert found == [("e1", 0, "t"), ("e1", 1, "t"), ("e1", 1, "other")]


def test_stream_that_ends_with_fewer_events_is_read_again() -> None:
    shorter = event(0)
    found = streamed(
        *(OPENED, event(0) + event(1), CUT),
        *(OPENED, shorter + END),
        *(OPENED, shorter + END),
    )
    assert [number for _, number, _ in found] == [0, 1, 0]


def test_error_of_the_server_ends_the_events() -> None:
    with pytest.raises(errors.EventStreamError, match="why"):
        streamed(OPENED, failure("internal"))


def content(*answers: Any) -> bytes:
    script = Script(answers)
    script.run(programs.read(script.context, "r1", DIGEST))
    return b"".join(script.emitted)


def test_content_that_is_lost_continues_after_what_was_emitted() -> None:
    lost = [OPENED, CONTENT[:4], CUT, problem(503, "stopping")]
    assert content(*lost, OPENED, CONTENT[:2], CONTENT[2:], None) == CONTENT


def test_content_with_another_digest_is_an_error() -> None:
    with pytest.raises(errors.ContentError, match=DIGEST):
        content(OPENED, CONTENT[:-1], None)
