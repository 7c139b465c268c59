"""Servers and clients of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from blocking import blocking_client
from daemon import Daemon
from rollout_client import Client

PROGRAM_VARIABLE = "ROLLOUT_PROGRAM"
"""Variable with the program `rollout` that the tests start."""


@pytest.fixture(scope="session")
def program() -> str:
    found = os.environ.get(PROGRAM_VARIABLE)
    if not found:
        pytest.skip(f"{PROGRAM_VARIABLE} names no program")
    return found


@pytest.fixture(scope="session")
def shared(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Return a server for tests that neither stop it nor look at all runs."""
    daemon = Daemon(program, tmp_path_factory.mktemp("shared"))
    yield daemon
    daemon.stop()


@pytest.fixture
def start(program: str, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Return a function that starts a server of the test's own."""
    with ExitStack() as stack:

        def start(*options: str) -> Daemon:
            daemon = Daemon(program, tmp_path, *options)
            stack.callback(daemon.stop)
            return daemon

        yield start


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Client]]:
    """Return a function that makes a client, synchronous or asynchronous."""
    with ExitStack() as stack:

        def connect(*arguments: Any, **options: Any) -> Client:
            make = Client if request.param == "sync" else blocking_client
            return stack.enter_context(make(*arguments, **options))

        yield connect


@pytest.fixture
def client(shared: Daemon, connect: Callable[..., Client]) -> Client:
    """Return a client of the shared server."""
    return connect(shared.url, shared.token)
