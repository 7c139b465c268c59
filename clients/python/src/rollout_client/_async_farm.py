"""Farms of the asynchronous client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from . import _farm_operations as operations
from . import _farm_programs as programs
from ._async_shell import AsyncShell
from ._farm_operations import Window
from ._farm_programs import Readings
from ._operations import JobDocument, build
from ._programs import Context, fetch
from .farm_models import (
    CancelledGroup,
    CompletedGroup,
    Completion,
    CompletionPage,
    CompletionRef,
    FarmInfo,
    FarmState,
    GroupPolicy,
    GroupRef,
    GroupStatus,
    InlineTask,
    ModelEndpoint,
    PausedFarm,
    SubmittedGroup,
    Trajectory,
)


class AsyncFarms:
    """The farms of a server."""

    def __init__(self, shell: AsyncShell, context: Context) -> None:
        self._shell = shell
        self._context = context

    async def create(
        self,
        name: str,
        document: JobDocument,
        *,
        consumers: tuple[str, ...] = ("train",),
        limits: Mapping[str, int] | None = None,
        staleness: Mapping[str, int] | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> AsyncFarm:
        """Open a new farm. It is durable when this returns.

        Args:
            name: Its name, a part of the keys of its samples.
            document: A job with one agent: its datasets are the tasks of the farm.
            consumers: Names of the readers of completions.
            limits: Bounds on what it holds, such as `open_samples`.
            staleness: Bounds on the age of policy versions: `admission`, `queue`, `in_flight`.
            priority: Its samples take free slots before those of a lower priority, -1000 to 1000.
            idempotency_key: A text that no other farm of this user has. The same call with the same
                key gives the same farm, also in another process. By default every call has a
                random one.

        Raises:
            InvalidJobError: The document or the settings have faults.
            IdempotencyConflictError: Another farm has this key.
            ValueError: The document is no job document.
            OSError: The file cannot be read.
        """
        settings = {"consumers": list(consumers), "limits": limits, "staleness": staleness}
        request = operations.creation(
            name,
            document,
            settings=settings,
            priority=priority,
            idempotency_key=idempotency_key,
        )
        found = await self._shell.run(fetch(self._context, request, FarmInfo))
        return AsyncFarm(self._shell, self._context, found)

    async def open(self, farm: str) -> AsyncFarm:
        """Return a farm that exists.

        Args:
            farm: Its id.

        Raises:
            NotFoundError: It does not exist, or belongs to another user.
        """
        found = await self._shell.run(programs.info(self._context, farm))
        return AsyncFarm(self._shell, self._context, found)

    def list(
        self,
        *,
        state: FarmState | None = None,
        user: str | None = None,
        name: str | None = None,
        page_size: int | None = None,
    ) -> AsyncGenerator[FarmInfo, None]:
        """Iterate over farms, newest first.

        Args:
            state: Only farms in this state.
            user: Only farms of this user.
            name: Only farms with this name.
            page_size: Farms of one request.
        """
        query = {"state": state, "user": user, "name": name, "limit": page_size}
        return self._shell.iterate(programs.farms(self._context, query))


class AsyncFarm:
    """A farm: an open run that is asked for groups of samples.

    It keeps no state but its id: another process continues with `farms.open(id)`.
    """

    def __init__(self, shell: AsyncShell, context: Context, opened: FarmInfo) -> None:
        self._shell = shell
        self._context = context
        self._readings = Readings()
        self.id = opened.id
        """Its id."""
        self.name = opened.name
        """Its name."""

    async def info(self) -> FarmInfo:
        """Show the farm."""
        return await self._shell.run(programs.info(self._context, self.id))

    async def submit(
        self,
        task: str | InlineTask,
        n: int,
        *,
        group: str | None = None,
        policy_version: int = 0,
        model: ModelEndpoint | None = None,
        sampling: Mapping[str, Any] | None = None,
        priority: int | None = None,
        deadline_sec: int | None = None,
        group_policy: GroupPolicy | None = None,
        max_refills: int | None = None,
        min_usable: int | None = None,
        consumer: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_wait_sec: float | None = None,
    ) -> SubmittedGroup:
        """Submit a group: `n` samples of a task. It is durable when this returns.

        Args:
            task: `dataset/task`, or a task of the farm with another instruction.
            n: Number of samples.
            group: Its id, 1 to 128 ASCII letters, digits, `-`, `_`, `.`, `:`. The same request with
                the same id is admitted once, also from another process. By default a random one.
            policy_version: Version of the policy.
            model: The model that agents call.
            sampling: Sampling parameters, passed to agents as they are.
            priority: Samples of a higher priority begin first; default 0.
            deadline_sec: Seconds after which samples that have not ended are cancelled.
            group_policy: How samples that the infrastructure lost are treated; default `refill`.
            max_refills: Samples that are replaced at most; default `n`.
            min_usable: Number of usable samples that is enough: the others are cancelled then.
            consumer: The reader of the completions; default the first one of the farm.
            metadata: Returned with every completion.
            max_wait_sec: Seconds to try again while the farm is full or the server cannot be
                reached; by default those of the retry policy.

        Raises:
            BusyError: The farm was full all the time.
            ConflictError: Another request has this id, or it was cancelled.
            InvalidGroupError: The request is invalid.
        """
        identity, request = operations.group_request(
            self.id,
            task,
            n,
            group=group,
            model=model,
            group_policy=group_policy,
            policy_version=policy_version,
            sampling=sampling,
            priority=priority,
            deadline_sec=deadline_sec,
            max_refills=max_refills,
            min_usable=min_usable,
            consumer=consumer,
            metadata=metadata,
        )
        return await self._shell.run(
            programs.submit(self._context, identity, request, max_wait_sec)
        )

    async def group(self, group: GroupRef) -> GroupStatus:
        """Show a group.

        Raises:
            NotFoundError: The farm does not know it, or not any more.
        """
        return await self._shell.run(programs.group(self._context, self.id, group))

    async def cancel(self, group: GroupRef) -> CancelledGroup:
        """Cancel a group. The id of one that was not submitted is never admitted."""
        arguments = {"id": self.id, "group": operations.group_id(group)}
        request = build(operations.CANCEL, arguments)
        return await self._shell.run(fetch(self._context, request, CancelledGroup))

    def completions(
        self,
        consumer: str | None = None,
        *,
        after: int = 0,
        page_size: int = 100,
        wait_sec: int = 30,
    ) -> AsyncGenerator[Completion, None]:
        """Iterate over completions that were not acknowledged, until a closed farm has no more.

        Each comes once, in the order of cursors, also over restarts of the server. A new iterator,
        also of another process, begins with the oldest one that was not acknowledged.

        Args:
            consumer: The reader; default the first one of the farm.
            after: Only completions with a higher cursor.
            page_size: Completions of one request.
            wait_sec: Seconds that a request waits for the first one, 0 to 60.

        Raises:
            ConflictError: The last session of the farm failed.
        """
        window = Window(self.id, consumer, after, page_size, wait_sec)
        return self._shell.iterate(programs.completions(self._context, self._readings, window))

    def groups(
        self,
        consumer: str | None = None,
        *,
        page_size: int = 100,
        wait_sec: int = 30,
    ) -> AsyncGenerator[CompletedGroup, None]:
        """Iterate over groups that have ended, whole, until a closed farm has no more.

        Dropped and cancelled groups come too: acknowledge every group. A group of which single
        completions were acknowledged before lacks them, and `is_whole` is false.

        Args:
            consumer: The reader; default the first one of the farm.
            page_size: Completions of one request.
            wait_sec: Seconds that a request waits for the first one, 0 to 60.

        Raises:
            ConflictError: The last session of the farm failed.
        """
        window = Window(self.id, consumer, 0, page_size, wait_sec)
        return self._shell.iterate(programs.groups(self._context, window))

    async def page(
        self,
        consumer: str | None = None,
        *,
        after: int = 0,
        limit: int = 100,
        wait_sec: int = 0,
    ) -> CompletionPage:
        """Read completions that were not acknowledged.

        Args:
            consumer: The reader; default the first one of the farm.
            after: Only completions with a higher cursor.
            limit: Most completions.
            wait_sec: Seconds to wait for the first one, 0 to 60.
        """
        request = operations.completions(Window(self.id, consumer, after, limit, wait_sec))
        return await self._shell.run(fetch(self._context, request, CompletionPage))

    async def ack(self, *taken: CompletionRef | CompletedGroup, consumer: str | None = None) -> int:
        """Acknowledge completions: they are not shown again. Return how many it were.

        Args:
            taken: Completions, cursors, or groups.
            consumer: The reader that cursors are of; default the first one of the farm.
        """
        requests = operations.acknowledgements(self.id, taken, consumer)
        return await self._shell.run(programs.acknowledge(self._context, self._readings, requests))

    async def record(self, completion: CompletionRef) -> Mapping[str, Any]:
        """Read the record of the trial of a completion that was not acknowledged.

        Raises:
            NotFoundError: It was acknowledged, or its execution left no record.
        """
        return await self._shell.run(programs.record(self._context, self.id, completion))

    async def calls(self, completion: CompletionRef) -> tuple[Trajectory, ...]:
        """Read the model calls of a completion that was not acknowledged, merged.

        Raises:
            NotFoundError: It was acknowledged, or its job has no gateway.
        """
        return await self._shell.run(programs.calls(self._context, self.id, completion))

    async def set_policy_version(self, version: int) -> None:
        """Say that there is a newer policy. A version that is not newer changes nothing."""
        request = build(operations.POLICY, {"id": self.id}, body={"version": version})
        await self._shell.run(programs.command(self._context, request))

    async def pause(self) -> PausedFarm:
        """Pause the farm: no sample begins, and the gateway holds model calls."""
        request = build(operations.PAUSE, {"id": self.id})
        return await self._shell.run(fetch(self._context, request, PausedFarm))

    async def resume(self, version: int | None = None) -> None:
        """End a pause. A farm whose last session failed is opened again.

        Args:
            version: Version of the policy from now on.
        """
        body = {} if version is None else {"version": version}
        request = build(operations.RESUME, {"id": self.id}, body=body)
        await self._shell.run(programs.command(self._context, request))

    @contextlib.asynccontextmanager
    async def weight_sync(self, version: int) -> AsyncIterator[PausedFarm]:
        """Pause the farm for a block that changes the weights, then resume it with their version.

        If the block fails, the farm stays paused, because model servers may have any weights: call
        `resume` when they have usable ones.

        Args:
            version: Version of the policy after the block.
        """
        yield await self.pause()
        await self.resume(version)

    async def close(self) -> FarmInfo:
        """Admit no more groups. The farm ends when all completions are acknowledged."""
        request = build(operations.CLOSE, {"id": self.id})
        return await self._shell.run(fetch(self._context, request, FarmInfo))

    async def delete(self) -> None:
        """Cancel the groups of the farm, and remove its files."""
        request = build(operations.DELETE, {"id": self.id})
        await self._shell.run(programs.command(self._context, request))
