"""Farms over answers from a list: retries, restarts, and completions that come twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_client import _farm_operations as operations
from rollout_client import _farm_programs as programs
from rollout_client import errors
from rollout_client._farm_operations import Window
from rollout_client._farm_programs import Readings
from rollout_client._operations import Request
from rollout_client.farm_models import (
    CompletedGroup,
    Completion,
    InlineTask,
    ModelEndpoint,
    SubmittedGroup,
)
from script import CUT, REFUSED, Script, answer, problem

WINDOW = Window("f1", "train", 0, 100, 30)


def completion(cursor: int, *, group: str = "g", index: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "cursor": cursor,
        "farm": "f",
        "group": group,
        "index": index,
        "generation": 1,
        "consumer": "train",
        "outcome": "completed",
        "reward": 0.5,
        "cost": 0.0,
        "usable": True,
        "policy": {"requested": 1, "admitted": 1, "ended": 2},
        "at": "2026-01-31T10:00:00Z",
        **values,
    }


def page(*completions: dict[str, Any]) -> Any:
    after = max((one["cursor"] for one in completions), default=0)
    return answer({"completions": list(completions), "next_after": after})


def farm(*, closed: bool = False, open_groups: int = 1) -> Any:
    names = ["policy_version", "last_cursor", "queued_samples", "begun_samples", "unacknowledged"]
    status = {"name": "f", "closed": closed, "open_groups": open_groups, "totals": {}}
    document = {
        "id": "f1",
        "name": "f",
        "user": "u",
        "priority": 0,
        "state": "closed" if closed else "running",
        "is_final": False,
        "created_at": "2026-01-31T10:00:00Z",
        "settings": {"name": "f"},
        "status": {**status, **dict.fromkeys(names, 0)},
    }
    return answer(document)


ENDED = [page(), farm(closed=True, open_groups=0), page()]


def request_for(**options: Any) -> tuple[str, Request]:
    values: dict[str, Any] = {"group": None, "model": None, "group_policy": None, **options}
    return operations.group_request("f1", "d/t", 2, **values)


def submitted(script: Script, max_wait_sec: float | None = None) -> SubmittedGroup:
    group, request = request_for(group="g")
    result = script.run(programs.submit(script.context, group, request, max_wait_sec))
    assert isinstance(result, SubmittedGroup)
    return result


def read(script: Script, window: Window = WINDOW) -> list[int]:
    script.run(programs.completions(script.context, Readings(), window))
    return [one.cursor for one in script.emitted]


def test_request_for_a_group_has_what_was_given_and_an_id() -> None:
    group, request = request_for()
    assert json.loads(request.body or b"") == {"group": group, "task": {"named": "d/t"}, "n": 2}
    assert request_for()[0] != group
    _, request = operations.group_request(
        "f1",
        InlineTask("d/t", "do it"),
        1,
        group="g",
        model=ModelEndpoint("m"),
        group_policy="drop",
        sampling={"temperature": None},
    )
    assert json.loads(request.body or b"") == {
        "group": "g",
        "task": {"inline": {"base": "d/t", "instruction": "do it"}},
        "n": 1,
        "group_policy": "drop",
        "model": {"name": "m"},
        "sampling": {"temperature": None},
    }


def test_group_is_sent_again_as_it_is_until_the_farm_has_room() -> None:
    busy = problem(429, "busy", limit="open_samples", depth=10, max=16)
    busy.headers["retry-after"] = "7"  # type: ignore[index]
    script = Script([busy, CUT, busy, answer({"group": "g", "known": True, "end": "complete"})])
    assert submitted(script) == SubmittedGroup("g", known=True, end="complete")
    assert len({request.body for request in script.requests}) == 1
    assert script.slept[0] == 7.0
    assert script.slept[2] == 7.0


def test_full_farm_is_an_error_with_its_limit_after_the_longest_wait() -> None:
    busy = problem(429, "busy", limit="open_samples", depth=10, max=16)
    with pytest.raises(errors.BusyError) as caught:
        submitted(Script([busy] * 100), max_wait_sec=3.0)
    found = caught.value.problem
    assert (found.limit, found.depth, found.max) == ("open_samples", 10, 16)
    script = Script([busy] * 20 + [answer({"group": "g", "known": False})])
    assert not submitted(script, max_wait_sec=1000.0).known


def test_invalid_group_is_its_own_error() -> None:
    with pytest.raises(errors.InvalidGroupError, match="cannot do it"):
        submitted(Script([problem(422, "invalid-group")]))


def test_completions_end_with_the_farm() -> None:
    later = [page(), farm(), page(completion(4))]
    script = Script([page(completion(1), completion(2)), *later, *ENDED])
    assert read(script) == [1, 2, 4]
    queries = [request.path.partition("?")[2] for request in script.requests]
    first = "consumer=train&after={}&limit=100&wait={}"
    waits = [(0, 0), (2, 0), None, (2, 30), (4, 0), None, (4, 0)]
    assert queries == ["" if wait is None else first.format(*wait) for wait in waits]


def test_completion_that_comes_while_the_farm_closes_is_read() -> None:
    closing = [page(), farm(), page(), farm(closed=True), page(), farm(closed=True, open_groups=0)]
    assert read(Script([*closing, page(completion(1)), *ENDED])) == [1]


def test_completions_are_read_on_after_restarts_and_lost_answers() -> None:
    lost: list[Any] = [CUT, REFUSED, REFUSED, problem(503, "stopping")]
    script = Script([page(completion(1)), *lost, page(completion(2)), *ENDED])
    assert read(script) == [1, 2]
    assert [request.path for request in script.requests[1:6]] == [script.requests[1].path] * 5


def test_completion_that_comes_twice_is_emitted_once() -> None:
    pages = [page(completion(1), completion(2)), page(completion(2), completion(3))]
    assert read(Script([*pages, *ENDED])) == [1, 2, 3]


def test_completion_that_was_acknowledged_meanwhile_is_not_emitted() -> None:
    readings = Readings()
    script = Script([page(completion(1), completion(2), completion(3)), *ENDED])
    script.on_emit = lambda found: readings.acknowledged([found.cursor + 1])
    script.run(programs.completions(script.context, readings, WINDOW))
    assert [one.cursor for one in script.emitted] == [1, 3]


def test_completions_go_on_after_any_wait_for_the_disk_of_the_server() -> None:
    waiting = [problem(503, "not-open")] * 500
    script = Script([page(completion(1)), *waiting, page(completion(2)), *ENDED])
    assert read(script) == [1, 2]
    assert script.now > script.policy.total_sec


def test_group_waits_for_the_disk_of_the_server_no_longer_than_its_limit() -> None:
    waiting = [problem(503, "not-open")] * 500
    script = Script([*waiting, answer({"group": "g", "known": False})])
    assert not submitted(script).known
    script = Script(iter(waiting))
    with pytest.raises(errors.UnavailableError):
        submitted(script, max_wait_sec=3.0)
    assert script.now <= 3.0


def test_failed_farm_ends_completions_with_an_error() -> None:
    with pytest.raises(errors.ConflictError):
        read(Script([page(completion(1)), problem(409, "failed")]))


def test_long_wait_of_the_server_is_no_timeout() -> None:
    assert operations.completions(WINDOW).wait_sec == 30


def group_status(n: int) -> Any:
    status = {"group": "g", "n": n, "open": 0, "usable": n, "refills": 0, "end": "complete"}
    return answer(status)


def test_groups_come_whole_by_position_in_the_order_of_their_ends() -> None:
    first = page(completion(1, index=1), completion(2, group="h", group_end="dropped"))
    second = page(completion(3, index=0, reward=None, usable=False, group_end="complete"))
    script = Script([first, group_status(1), second, group_status(2), *ENDED])
    script.run(programs.groups(script.context, WINDOW))
    dropped, complete = script.emitted
    assert (dropped.group, dropped.end, dropped.is_whole) == ("h", "dropped", True)
    assert [one.cursor for one in complete.completions] == [3, 1]
    assert complete.rewards == (None, 0.5)
    assert [one.cursor for one in complete.usable] == [1]
    assert complete.is_whole


def test_group_without_completions_that_were_acknowledged_is_not_whole() -> None:
    script = Script([page(completion(3, index=2, group_end="complete")), group_status(3), *ENDED])
    script.run(programs.groups(script.context, WINDOW))
    (found,) = script.emitted
    assert not found.is_whole


def test_group_that_was_acknowledged_meanwhile_is_not_emitted() -> None:
    former = answer({"group": "g", "end": "complete"})
    script = Script([page(completion(1, group_end="complete")), former, *ENDED])
    script.run(programs.groups(script.context, WINDOW))
    assert script.emitted == []


def test_acknowledgement_has_a_request_for_each_consumer() -> None:
    def one(cursor: int, consumer: str) -> Completion:
        script = Script([page(completion(cursor, consumer=consumer)), *ENDED])
        read(script)
        found = script.emitted[0]
        assert isinstance(found, Completion)
        return found

    whole = CompletedGroup("g", 2, "complete", (one(1, "train"), one(2, "train")))
    taken: list[int | Completion | CompletedGroup] = [whole, one(3, "eval"), 4]
    requests = operations.acknowledgements("f1", taken, None)
    bodies = [json.loads(request.body or b"") for _, request in requests]
    assert bodies == [
        {"consumer": "train", "cursors": [1, 2]},
        {"consumer": "eval", "cursors": [3]},
        {"cursors": [4]},
    ]
    receipts = [{"acknowledged": count, "repeated": 0, "unknown": 0} for count in (2, 1, 0)]
    script = Script([answer(receipt) for receipt in receipts])
    assert script.run(programs.acknowledge(script.context, Readings(), requests)) == 3


def test_many_cursors_are_acknowledged_in_several_requests() -> None:
    requests = operations.acknowledgements("f1", range(1, 5001), "train")
    assert [len(cursors) for cursors, _ in requests] == [4096, 904]
