"""Every operation of farms as a program: calls, pages, and iterators over completions."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import _farm_operations as operations
from ._decode import decode, read_object
from ._effects import Emit, Program
from ._farm_operations import Window
from ._operations import Request, build
from ._programs import Context, call, fetch
from .errors import AnswerError
from .farm_models import (
    Acknowledgement,
    CompletedGroup,
    Completion,
    CompletionPage,
    CompletionRef,
    FarmInfo,
    FarmPage,
    GroupRef,
    GroupStatus,
    SubmittedGroup,
    Trajectory,
    TrajectoryList,
)


def farms(context: Context, query: Mapping[str, str | int | None]) -> Program[None]:
    """Emit the farms of all pages."""
    cursor = None
    while True:
        request = build(operations.FARMS, query={**query, "cursor": cursor})
        page = yield from fetch(context, request, FarmPage)
        for farm in page.farms:
            yield Emit(farm)
        cursor = page.next_cursor
        if cursor is None:
            return


def info(context: Context, farm: str) -> Program[FarmInfo]:
    """Show a farm."""
    return (yield from fetch(context, build(operations.FARM, {"id": farm}), FarmInfo))


def submit(
    context: Context, group: str, request: Request, max_wait_sec: float | None
) -> Program[SubmittedGroup]:
    """Submit a group, and wait while the farm is full."""
    if max_wait_sec is not None:
        policy = replace(context.policy, total_sec=max_wait_sec)
        context = replace(context, policy=policy, limits_start=True)
    reply = yield from call(context, request)
    found = read_object(reply.body, "the answer to a request for a group")
    return decode(SubmittedGroup, {**found, "group": group})


def group(context: Context, farm: str, group: GroupRef) -> Program[GroupStatus]:
    """Show a group."""
    arguments = {"id": farm, "group": operations.group_id(group)}
    return (yield from fetch(context, build(operations.GROUP, arguments), GroupStatus))


def record(context: Context, farm: str, completion: CompletionRef) -> Program[dict[str, Any]]:
    """Read the record of a trial."""
    arguments = {"id": farm, "cursor": operations.cursor(completion)}
    reply = yield from call(context, build(operations.RECORD, arguments))
    return read_object(reply.body, "a record")


def calls(
    context: Context, farm: str, completion: CompletionRef
) -> Program[tuple[Trajectory, ...]]:
    """Read the model calls of a sample."""
    arguments = {"id": farm, "cursor": operations.cursor(completion)}
    request = build(operations.CALLS, arguments)
    return (yield from fetch(context, request, TrajectoryList)).trajectories


def command(context: Context, request: Request) -> Program[None]:
    """Call an operation whose answer has nothing that is needed."""
    yield from call(context, request)


@dataclass(eq=False)
class Reading:
    """The state of an iterator over completions."""

    window: Window
    """Its completions; `after` is the last cursor that was read."""
    page: dict[int, Completion] = field(default_factory=dict)
    """Completions that were read and not emitted."""


class Readings:
    """The iterators of a farm in this process: they do not emit what was acknowledged meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: list[Reading] = []

    def begin(self, window: Window) -> Reading:
        """Register an iterator."""
        reading = Reading(window)
        with self._lock:
            self._readings.append(reading)
        return reading

    def end(self, reading: Reading) -> None:
        """Forget an iterator."""
        with self._lock:
            self._readings.remove(reading)

    def acknowledged(self, cursors: Iterable[int]) -> None:
        """Take acknowledged completions from all iterators."""
        with self._lock:
            for reading in self._readings:
                for cursor in cursors:
                    reading.page.pop(cursor, None)


def acknowledge(
    context: Context, readings: Readings, requests: list[tuple[list[int], Request]]
) -> Program[int]:
    """Acknowledge completions, and return how many were acknowledged now."""
    count = 0
    for cursors, request in requests:
        count += (yield from fetch(context, request, Acknowledgement)).acknowledged
        readings.acknowledged(cursors)
    return count


def completions(context: Context, readings: Readings, window: Window) -> Program[None]:
    """Emit completions that were not acknowledged, each once, until the farm has ended."""
    reading = readings.begin(window)
    try:
        while (yield from _fill(context, reading)):
            while reading.page:
                completion = reading.page.pop(next(iter(reading.page)))
                yield Emit(completion)
    finally:
        readings.end(reading)


def groups(context: Context, window: Window) -> Program[None]:
    """Emit groups that have ended, in the order of their ends, until the farm has ended."""
    reading, begun = Reading(window), dict[str, list[Completion]]()
    while (yield from _fill(context, reading)):
        for completion in reading.page.values():
            begun.setdefault(completion.group, []).append(completion)
            if completion.group_end is not None:
                found = begun.pop(completion.group)
                whole = yield from _completed(context, window.farm, found)
                if whole is not None:
                    yield Emit(whole)
        reading.page.clear()


def _completed(
    context: Context, farm: str, found: list[Completion]
) -> Program[CompletedGroup | None]:
    last = found[-1]
    if last.group_end is None:
        raise AnswerError(f"cannot read the group {last.group}: its last completion has no end")
    # Completions that were acknowledged alone are missing: the farm knows the number.
    status = yield from group(context, farm, last.group)
    if status.n is None:
        # All of them were acknowledged meanwhile.
        return None
    found.sort(key=lambda completion: completion.index)
    return CompletedGroup(last.group, status.n, last.group_end, tuple(found))


def _fill(context: Context, reading: Reading) -> Program[bool]:
    """Read the next completions, wait until there are some; `False` when none will be added."""
    if (yield from _read(context, reading, 0)):
        return True
    while True:
        is_over = (yield from info(context, reading.window.farm)).is_over
        # The last completion may have come after the last look.
        if (yield from _read(context, reading, 0 if is_over else reading.window.wait_sec)):
            return True
        if is_over:
            return False


def _read(context: Context, reading: Reading, wait_sec: int) -> Program[bool]:
    """Read the next completions, and return whether there are some."""
    window = replace(reading.window, wait_sec=wait_sec)
    page = yield from fetch(context, operations.completions(window), CompletionPage)
    new = {one.cursor: one for one in page.completions if one.cursor > window.after}
    if new:
        reading.page.update(new)
        reading.window = replace(reading.window, after=max(new))
    return bool(new)
