"""Executors of the asynchronous client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

from . import _executor_operations as operations
from . import _executor_programs as programs
from . import _operations
from ._async_shell import AsyncShell
from ._download import download_content
from ._operations import JobDocument, RunRef
from ._programs import Context, fetch, fetch_run
from .executor_models import (
    ArtifactReference,
    ContentReference,
    ControlAction,
    ControlReceipt,
    OutputReference,
    PlannedTrial,
    TrialEvent,
    TrialHandle,
    TrialRef,
    TrialStatus,
)
from .models import Run


class AsyncExecutors:
    """The executors of a server: runs whose trials are started one by one."""

    def __init__(self, shell: AsyncShell, context: Context) -> None:
        self._shell = shell
        self._context = context

    async def create(
        self,
        document: JobDocument,
        *,
        name: str | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> AsyncExecutor:
        """Open a new executor. Its run is durable when this returns, and starts no trial by itself.

        Args:
            document: A job: its trials are those that can be started.
            name: Name for people, in place of the document's.
            priority: Runs with a higher priority start first, -1000 to 1000.
            idempotency_key: A text that no other submission of this user has. The same call with
                the same key gives the same executor, also in another process. By default every call
                has a random one.

        Raises:
            InvalidJobError: The document has faults.
            IdempotencyConflictError: Another submission has this key.
            ValueError: The document is no job document.
            OSError: The file cannot be read.
        """
        request = _operations.submission(
            document,
            kind="executor",
            name=name,
            priority=priority,
            idempotency_key=idempotency_key,
        )
        found = await self._shell.run(fetch(self._context, request, Run))
        return AsyncExecutor(self._shell, self._context, found)

    async def open(self, run: RunRef) -> AsyncExecutor:
        """Return an executor that exists.

        Args:
            run: Its run.

        Raises:
            NotFoundError: It does not exist, or belongs to another user.
            ValueError: The run is no executor.
        """
        found = await self._shell.run(fetch_run(self._context, _operations.RUN, run))
        if found.kind != "executor":
            raise ValueError(f"cannot open {found.id} as an executor: its kind is {found.kind}")
        return AsyncExecutor(self._shell, self._context, found)


class AsyncExecutor:
    """An executor: a run whose trials are started, watched, controlled and cancelled one by one.

    It keeps no state but its id: another process continues with `executors.open(id)`. Calls wait
    for as long as the run waits for its start.
    """

    def __init__(self, shell: AsyncShell, context: Context, opened: Run) -> None:
        self._shell = shell
        self._context = context
        self.id = opened.id
        """The id of its run: `client.run`, `wait` and `cancel` take it."""

    def planned(self, *, page_size: int | None = None) -> AsyncGenerator[PlannedTrial, None]:
        """Iterate over the trials that can be started, in the plan's order.

        Args:
            page_size: Trials of one request, 1 to 1000.
        """
        return self._shell.iterate(programs.planned(self._context, self.id, page_size))

    async def start(self, trial: PlannedTrial) -> TrialHandle:
        """Start a trial, unless it was started before. The start is durable when this returns.

        Raises:
            NotFoundError: The plan has no such trial.
            ConflictError: Its specification is another one, or the run takes no more trials.
        """
        request = operations.start_request(self.id, trial)
        return await self._shell.run(fetch(self._context, request, TrialHandle))

    async def status(self, trial: TrialRef) -> TrialStatus:
        """Show the status of a started trial.

        Raises:
            NotFoundError: It was not started.
            ConflictError: The run has ended.
        """
        return await self._shell.run(programs.status(self._context, self.id, trial))

    async def wait(self, trial: TrialRef, *, timeout_sec: float | None = None) -> TrialStatus:
        """Wait until a started trial is settled, and return its status.

        Args:
            trial: The trial.
            timeout_sec: Seconds to wait at most.

        Raises:
            NotFoundError: It was not started.
            TrialWaitTimeoutError: It was not settled in time. It goes on.
        """
        return await self._shell.run(programs.wait(self._context, self.id, trial, timeout_sec))

    def events(self, trial: TrialRef, *, from_number: int = 0) -> AsyncGenerator[TrialEvent, None]:
        """Iterate over the events of a trial's harness until the trial is settled.

        The iterator outlives a lost connection and a restart of the server. An event replaces every
        earlier one with the same or a higher number.

        Args:
            trial: The trial.
            from_number: Only events with this number or a higher one.

        Raises:
            NotFoundError: It was not started.
            EventStreamError: The server cannot read the events.
        """
        return self._shell.iterate(programs.events(self._context, self.id, trial, from_number))

    async def control(
        self,
        trial: TrialRef,
        action: ControlAction,
        *,
        label: str | None = None,
        requested_by: str | None = None,
        timeout_sec: float = 30.0,
        grace_sec: float = 30.0,
    ) -> ControlReceipt:
        """Send a control to the harness of a running trial, and return the receipt of its worker.

        It is not repeated after the server may have received it.

        Args:
            trial: The trial.
            action: What the harness is asked for.
            label: Name of a checkpoint, or another label.
            requested_by: The requester; by default the user.
            timeout_sec: Longest wait for the acknowledgement, seconds, at most 3600.
            grace_sec: Seconds after this wait that a command that ignored `stop` may still run.

        Raises:
            NotFoundError: It was not started.
            ConflictError: It does not run.
            UnavailableError: Its worker did not answer.
        """
        request = operations.control_request(
            self.id,
            trial,
            action,
            label=label,
            requested_by=requested_by,
            timeout_sec=timeout_sec,
            grace_sec=grace_sec,
        )
        return await self._shell.run(fetch(self._context, request, ControlReceipt))

    async def cancel(self, trial: TrialRef) -> TrialStatus:
        """Cancel a trial: it settles as cancelled, unless it has a result.

        Raises:
            NotFoundError: It was not started.
        """
        request = operations.about(operations.CANCEL, self.id, trial)
        return await self._shell.run(fetch(self._context, request, TrialStatus))

    async def output(self, trial: TrialRef) -> OutputReference | None:
        """Return the reference to the output of a settled trial.

        It is `None` if the settlement has everything.

        Raises:
            ConflictError: It is not settled.
        """
        return await self._shell.run(programs.output(self._context, self.id, trial))

    async def artifacts(self, trial: TrialRef) -> tuple[ArtifactReference, ...]:
        """List the references to captured output, logs and kept files of a settled trial.

        Raises:
            ConflictError: It is not settled.
        """
        return await self._shell.run(programs.artifacts(self._context, self.id, trial))

    def read(self, content: ContentReference) -> AsyncGenerator[bytes, None]:
        """Iterate over pieces of the content of a reference, which is checked at its end.

        Content can be read after the end of the run, until it is deleted.

        Raises:
            NotFoundError: No result of the run refers to it.
            ContentError: The content has another digest.
        """
        return self._shell.iterate(programs.read(self._context, self.id, content))

    async def download(self, content: ContentReference, to: str | os.PathLike[str]) -> Path:
        """Write the content of a reference to a file, and return its path.

        The file appears when it is whole and has the digest of the reference.

        Args:
            content: The reference.
            to: The file. One that exists is replaced.

        Raises:
            NotFoundError: No result of the run refers to it.
            ContentError: The content has another digest.
            OSError: The file cannot be written.
        """
        return await self._shell.run(download_content(self._context, self.id, content, Path(to)))

    async def finish(self) -> Run:
        """Take no more trials: the run ends when every started trial is settled.

        `client.wait(executor.id)` waits for that.
        """
        return await self._shell.run(fetch_run(self._context, operations.FINISH, self.id))
