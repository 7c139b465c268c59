"""A scripted shell: performs effects from a list of answers, and notes what it was asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rollout_client import RetryPolicy
from rollout_client._effects import (
    Block,
    Close,
    Emit,
    Lost,
    Open,
    Program,
    Read,
    Reply,
    Send,
    Sleep,
)
from rollout_client._operations import Request
from rollout_client._programs import Context

CUT = Lost("cut", may_have_arrived=True)
REFUSED = Lost("refused", may_have_arrived=False)


def problem(status: int, kind: str, **values: Any) -> Reply:
    document = {
        "type": f"urn:rollout:problem:{kind}",
        "title": "Title",
        "status": status,
        "detail": "cannot do it",
        "code": 3,
        "details": [],
        "hints": [],
        "request_id": "r",
        **values,
    }
    headers = {"content-type": "application/problem+json"}
    return Reply(status, headers, json.dumps(document).encode())


def answer(document: Any, status: int = 200) -> Reply:
    return Reply(status, {"content-type": "application/json"}, json.dumps(document).encode())


OPENED = Reply(200, {"content-type": "text/event-stream"}, b"")


def run_document(**values: Any) -> dict[str, Any]:
    names = ["session", "total", "settled", "completed", "failed", "cancelled"]
    names += ["unverified", "passed", "infrastructure_failures", "running"]
    progress = dict.fromkeys(names, 0)
    return {
        "id": "r1",
        "name": "n",
        "user": "u",
        "kind": "job",
        "priority": 0,
        "state": "running",
        "is_final": False,
        "created_at": "2026-01-31T10:00:00.123456789Z",
        "progress": progress,
        **values,
    }


@dataclass
class Script:
    """Runs a program. `answers` has one entry for each `Send`, `Open` and `Read`."""

    answers: Iterable[Any]
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    requests: list[Request] = field(default_factory=list)
    emitted: list[Any] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    now: float = 0.0
    is_open: bool = False
    on_emit: Callable[[Any], None] = lambda _value: None
    """Called with each value that is emitted."""

    def __post_init__(self) -> None:
        self._answers = iter(self.answers)
        self.context = Context(self.policy, clock=lambda: self.now, chance=lambda: 1.0)

    def run(self, program: Program[Any]) -> Any:
        result = None
        try:
            for _ in itertools.count():
                result = self._perform(program.send(result))
        except StopIteration as done:
            assert not self.is_open
            assert next(self._answers, None) is None, "answers are left"
            return done.value
        finally:
            program.close()

    def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Sleep):
            self.slept.append(effect.seconds)
            self.now += effect.seconds
        elif isinstance(effect, Emit):
            self.emitted.append(effect.value)
            self.on_emit(effect.value)
        elif isinstance(effect, Block):
            return effect.function()
        elif isinstance(effect, Close):
            self.is_open = False
        elif isinstance(effect, Read):
            assert self.is_open
            return self._next()
        else:
            assert isinstance(effect, (Send, Open))
            self.requests.append(effect.request)
            found = self._next()
            is_stream = isinstance(effect, Open) and isinstance(found, Reply)
            self.is_open = is_stream and found.status == 200
            return found
        return None

    def _next(self) -> Any:
        found = next(self._answers)
        if isinstance(found, tuple):
            seconds, found = found
            self.now += seconds
        return found
