"""The synchronous client."""
# Made from _async.py by tests/sync_source.py.

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from types import TracebackType

from . import _events, _operations, _programs
from ._datasets import upload
from ._download import download, download_export
from ._operations import ItemRef, JobDocument, RunRef
from ._programs import Context
from ._retry import RetryPolicy
from ._settings import Settings, Verify
from ._sync_executor import Executors
from ._sync_farm import Farms
from ._sync_shell import SyncShell
from .models import (
    Artifact,
    Event,
    Export,
    ExportFormat,
    Item,
    ItemDetail,
    ItemPage,
    ItemState,
    Output,
    Run,
    RunPage,
    RunState,
    SubmissionKind,
)
from .search_models import SearchOverview


class Client:
    """A client of a server, `rollout serve`. It is a context manager, and threads may share it.

    Every method raises a `RolloutError`: an `ApiError` for an error that the server answered, a
    `TransportError` without an answer. A request is repeated, as the retry policy says, when the
    server cannot be reached or refuses for now (408, 429, 502, 503, 504).
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        verify: Verify = True,
        timeout_sec: float = 30.0,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Make a client. No connection is opened yet.

        Args:
            url: URL of the server; by default that of the variable `ROLLOUT_API_URL`, else
                `http://127.0.0.1:4280`.
            token: Token of the user; by default that of the variable `ROLLOUT_API_TOKEN`.
            verify: Check of the server's certificate: by the usual authorities (`True`), by those
                of a PEM file, by an `ssl.SSLContext`, or not at all (`False`).
            timeout_sec: Seconds in which the server must answer. Events and output have no limit.
            retry: How long to try again.

        Raises:
            ValueError: The URL or the token cannot be used.
            OSError: The file of certificates cannot be read.
        """
        settings = Settings.read(url, token, verify, timeout_sec)
        self._shell = SyncShell(settings)
        self._context = Context(retry or RetryPolicy(), url=settings.url)
        self.farms = Farms(self._shell, self._context)
        """The farms of the server."""
        self.executors = Executors(self._shell, self._context)
        """The executors of the server."""

    def __enter__(self) -> Client:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._shell.close()

    def submit(
        self,
        document: JobDocument,
        *,
        kind: SubmissionKind = "job",
        name: str | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> Run:
        """Submit a job or a search. The run is durable when this returns.

        Args:
            document: The document of the job or search, its text in YAML, or the path of its file.
                Paths in it are those of the server.
            kind: `job`, or `tree` for a search; `executors.create` submits executors.
            name: Name for people, in place of the document's.
            priority: Runs with a higher priority start first, -1000 to 1000.
            idempotency_key: A text that no other submission of this user has. The same submission
                with the same key gives the same run, also in another process. By default every call
                has a random one; with an empty one the submission is not repeated after it may have
                arrived.

        Raises:
            InvalidJobError: The document has faults.
            IdempotencyConflictError: Another submission has this key.
            ValueError: The document is no job document.
            OSError: The file cannot be read.
        """
        request = _operations.submission(
            document,
            kind=kind,
            name=name,
            priority=priority,
            idempotency_key=idempotency_key,
        )
        return self._shell.run(_programs.submit(self._context, request))

    def upload(self, directory: str | os.PathLike[str]) -> str:
        """Upload a directory of tasks, unless the server has it, and return its path in documents.

        Of tasks, only what a run reads is sent; a directory without tasks is sent whole, without
        directories `.git`. The path is for documents (`dict`), not for texts in YAML:
        `{"datasets": [{"path": client.upload("tasks")}]}`.

        Args:
            directory: The directory.

        Raises:
            ValueError: Something in it is no file, directory or link.
            OSError: It cannot be read.
        """
        return self._shell.run(upload(self._context, Path(directory)))

    def runs(
        self,
        *,
        state: RunState | None = None,
        user: str | None = None,
        name: str | None = None,
        page_size: int | None = None,
    ) -> Generator[Run, None, None]:
        """Iterate over runs, newest first.

        Args:
            state: Only runs in this state.
            user: Only runs of this user.
            name: Only runs with this name.
            page_size: Runs of one request, 1 to 500.
        """
        query = {"state": state, "user": user, "name": name, "limit": page_size}
        return self._shell.iterate(_programs.runs(self._context, query))

    def runs_page(
        self,
        *,
        state: RunState | None = None,
        user: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> RunPage:
        """Read a page of runs, with those that the server cannot open.

        Args:
            state: Only runs in this state.
            user: Only runs of this user.
            name: Only runs with this name.
            limit: Most runs of the page, 1 to 500.
            cursor: `next` of the page before.
        """
        query = {"state": state, "user": user, "name": name, "limit": limit, "cursor": cursor}
        return self._shell.run(_programs.runs_page(self._context, query))

    def run(self, run: RunRef) -> Run:
        """Show a run.

        Raises:
            NotFoundError: It does not exist, or belongs to another user.
        """
        return self._shell.run(_programs.fetch_run(self._context, _operations.RUN, run))

    def wait(self, run: RunRef, *, timeout_sec: float | None = None) -> Run:
        """Wait until a run has ended, or its last session has failed, and return it.

        A run that failed with the disk of the server is waited for: it continues by itself.

        Args:
            run: The run.
            timeout_sec: Seconds to wait at most.

        Raises:
            WaitTimeoutError: It has not ended in time. It goes on.
        """
        return self._shell.run(_programs.wait(self._context, run, timeout_sec))

    def cancel(self, run: RunRef) -> Run:
        """Cancel a run: its trials end as cancelled, except those that have a result.

        Raises:
            ConflictError: It has ended otherwise.
        """
        return self._shell.run(_programs.fetch_run(self._context, _operations.CANCEL, run))

    def pause(self, run: RunRef) -> Run:
        """Pause a run: no trial begins, and running ones go on.

        Raises:
            ConflictError: It has ended or was cancelled.
        """
        return self._shell.run(_programs.fetch_run(self._context, _operations.PAUSE, run))

    def resume(self, run: RunRef) -> Run:
        """End a pause, or try a run again whose last session failed.

        Raises:
            ConflictError: It has ended or was cancelled.
        """
        return self._shell.run(_programs.fetch_run(self._context, _operations.RESUME, run))

    def delete(self, run: RunRef) -> None:
        """Delete a run that has ended, and its files.

        Raises:
            ConflictError: It has not ended.
        """
        return self._shell.run(_programs.delete(self._context, run))

    def events(self, run: RunRef, *, after: int = 0) -> Generator[Event, None, None]:
        """Iterate over the durable events of a run until it has stopped.

        Every event comes once and in order, also when the connection is lost or the server is
        started again. Another process continues where this one ended with `after=event.seq`.

        Args:
            run: The run.
            after: Only events with a higher number.
        """
        return self._shell.iterate(_events.events(self._context, run, after))

    def items(
        self,
        run: RunRef,
        *,
        state: ItemState | None = None,
        agent: str | None = None,
        task: str | None = None,
        page_size: int | None = None,
    ) -> Generator[Item, None, None]:
        """Iterate over the items of a run, in the plan's order.

        Args:
            run: The run.
            state: Only items in this state.
            agent: Pattern of the agent's name.
            task: Pattern of the task's name, or of `dataset/task`.
            page_size: Items of one request, 1 to 1000.
        """
        query = {"state": state, "agent": agent, "task": task, "limit": page_size}
        return self._shell.iterate(_programs.items(self._context, run, query))

    def items_page(
        self,
        run: RunRef,
        *,
        state: ItemState | None = None,
        agent: str | None = None,
        task: str | None = None,
        limit: int | None = None,
        cursor: int | None = None,
    ) -> ItemPage:
        """Read a page of items.

        Args:
            run: The run.
            state: Only items in this state.
            agent: Pattern of the agent's name.
            task: Pattern of the task's name, or of `dataset/task`.
            limit: Most items of the page, 1 to 1000.
            cursor: `next` of the page before.
        """
        query = {"state": state, "agent": agent, "task": task, "limit": limit, "cursor": cursor}
        return self._shell.run(_programs.items_page(self._context, run, query))

    def item(self, run: RunRef, item: ItemRef) -> ItemDetail:
        """Show an item with its executions.

        Raises:
            NotFoundError: There is none, or several have the name.
        """
        return self._shell.run(_programs.item(self._context, run, item))

    def outputs(self, run: RunRef, item: ItemRef) -> tuple[Output, ...]:
        """List the captured outputs of an item."""
        return self._shell.run(_programs.outputs(self._context, run, item))

    def logs(
        self,
        run: RunRef,
        item: ItemRef,
        *,
        name: str | None = None,
        try_number: int | None = None,
        follow: bool = False,
    ) -> Generator[bytes, None, None]:
        """Iterate over pieces of the output of an item: bytes, as the agent wrote them.

        A connection that is lost after the first piece raises `TransportError`.

        Args:
            run: The run.
            item: The item.
            name: Path of an output, or of a directory of outputs; by default all, with a header
                each.
            try_number: The try; by default the one that settled the item, else the last one with
                output.
            follow: Send the output of an item that runs as it is written, until it is settled.
        """
        request = _programs.logs_request(run, item, name=name, number=try_number, follow=follow)
        return self._shell.iterate(_programs.content(self._context, request))

    def artifacts(self, run: RunRef, item: ItemRef) -> tuple[Artifact, ...]:
        """List the artifacts of an item."""
        return self._shell.run(_programs.artifacts(self._context, run, item))

    def artifact(self, run: RunRef, item: ItemRef, path: str) -> Generator[bytes, None, None]:
        """Iterate over pieces of an artifact; one of several files is an archive.

        A connection that is lost after the first piece raises `TransportError`.
        """
        request = _programs.artifact_request(run, item, path)
        return self._shell.iterate(_programs.content(self._context, request))

    def download(
        self, run: RunRef, item: ItemRef, artifact: Artifact | str, to: str | os.PathLike[str]
    ) -> Path:
        """Write an artifact to a file, and return its path.

        The file appears when it is whole and has the digest of the list. A lost connection begins
        it again.

        Args:
            run: The run.
            item: The item.
            artifact: The artifact, or its path in the list.
            to: The file. One that exists is replaced.

        Raises:
            ContentError: The content has another digest.
            OSError: The file cannot be written.
        """
        return self._shell.run(download(self._context, run, item, artifact, Path(to)))

    def search(self, run: RunRef) -> SearchOverview:
        """Show the overview of a search: its progress, the tried ideas and the best path so far.

        Raises:
            NotFoundError: It does not exist, or its first session has not begun.
            ConflictError: The run is no search.
        """
        return self._shell.run(_programs.search(self._context, run))

    def export(
        self,
        run: RunRef,
        export_format: ExportFormat = "jsonl",
        *,
        min_reward: float | None = None,
    ) -> Generator[bytes, None, None]:
        """Iterate over pieces of an export of the results of a run.

        A connection that is lost after the first piece raises `TransportError`.

        Args:
            run: The run.
            export_format: Its format.
            min_reward: For `sft`, the least reward of a trial; 1 by default.

        Raises:
            ConflictError: The run is a search, or has no plan yet.
        """
        request = _programs.export_request(run, export_format, min_reward)
        return self._shell.iterate(_programs.content(self._context, request))

    def download_export(
        self,
        run: RunRef,
        to: str | os.PathLike[str],
        export_format: ExportFormat = "jsonl",
    ) -> Export:
        """Write an export of the results of a run to a file.

        The file appears when it is whole. A lost connection begins it again.

        Args:
            run: The run.
            to: The file. One that exists is replaced.
            export_format: Its format.

        Raises:
            ConflictError: The run is a search, or has no plan yet.
            OSError: The file cannot be written.
        """
        program = download_export(self._context, run, export_format, Path(to))
        return self._shell.run(program)
