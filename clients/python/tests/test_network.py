"""Lost answers, dead servers and certificates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from daemon import DEADLINE_SEC, Daemon
from proxy import Proxy, make_certificate
from rollout_client import AsyncClient, Client, RetryPolicy, errors


def test_submission_whose_answer_is_lost_runs_once(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    daemon = start()
    with Proxy(daemon.url, lost_answers=3) as proxy:
        run = connect(proxy.url, daemon.token).submit(daemon.job())
        assert proxy.connections == 4
    client = connect(daemon.url, daemon.token)
    assert [found.id for found in client.runs()] == [run.id]
    client.wait(run, timeout_sec=DEADLINE_SEC)
    with Proxy(daemon.url, lost_answers=1) as proxy:
        connect(proxy.url, daemon.token).delete(run)
    assert list(client.runs()) == []


def test_submission_without_key_is_not_sent_again(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    daemon = start()
    with Proxy(daemon.url, lost_answers=1) as proxy:
        with pytest.raises(errors.TransportError) as caught:
            connect(proxy.url, daemon.token).submit(daemon.job(), idempotency_key="")
        assert (caught.value.may_have_arrived, proxy.connections) == (True, 1)
    client = connect(daemon.url, daemon.token)
    (run,) = client.runs()
    client.wait(run, timeout_sec=DEADLINE_SEC)


def test_events_survive_kills_of_the_server(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    daemon = start()
    client = connect(daemon.url, daemon.token)
    run = client.submit(daemon.job(n_attempts=8, n_concurrent_trials=2))
    received, restarts = [], []
    for event in client.events(run):
        received.append(event)
        if len(received) in (1, 4, 9):
            restarts.append(daemon.restart_meanwhile())
    for restart in restarts:
        restart.join()
    assert [dict(event.data) for event in received] == daemon.recorded_events(run.id)
    assert [event.seq for event in received] == [event.data["seq"] for event in received]
    assert sum(event.kind == "trial_settled" for event in received) >= 8
    assert len(restarts) == 3
    assert client.wait(run, timeout_sec=DEADLINE_SEC).progress.completed == 8
    later = list(client.events(run, after=received[3].seq))
    assert later == received[4:]


def test_calls_and_waiting_survive_a_kill_of_the_server(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    daemon = start("--max-running", "1")
    client = connect(daemon.url, daemon.token)
    run = client.submit(daemon.job(n_attempts=4, n_concurrent_trials=1))
    restart = daemon.restart_meanwhile()
    other = client.submit(daemon.job())
    restart.join()
    restart = daemon.restart_meanwhile()
    for waited in (run, other):
        assert client.wait(waited, timeout_sec=DEADLINE_SEC).state == "completed"
    restart.join()


def test_stream_that_is_left_closes_its_connection(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    # Half of the connections may be streams.
    daemon = start("--max-connections", "8")
    client = connect(daemon.url, daemon.token)
    run = client.submit(daemon.job("sleep 60"))
    for _ in range(12):
        for _event in client.events(run):
            break
    client.cancel(run)
    client.wait(run, timeout_sec=DEADLINE_SEC)


def test_many_streams_share_a_client(shared: Daemon) -> None:
    async def follow() -> None:
        async with AsyncClient(shared.url, shared.token) as client:
            run = await client.submit(shared.job(n_attempts=3))

            async def read() -> list[int]:
                async with aclosing(client.events(run)) as events:
                    return [event.seq async for event in events]

            streams = await asyncio.gather(*(read() for _ in range(100)))
            assert len(streams[0]) >= 3
            assert all(stream == streams[0] for stream in streams)
            assert (await client.wait(run)).state == "completed"

    asyncio.run(follow())


def test_cancelled_task_ends_its_stream(shared: Daemon) -> None:
    async def follow() -> None:
        async with AsyncClient(shared.url, shared.token) as client:
            run = await client.submit(shared.job("sleep 60"))
            first = asyncio.Event()

            async def read() -> None:
                async for _event in client.events(run):
                    first.set()

            reading = asyncio.create_task(read())
            await first.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await client.cancel(run)
            assert (await client.wait(run)).state == "cancelled"

    asyncio.run(follow())


def test_certificate_is_checked(
    shared: Daemon, connect: Callable[..., Client], tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path)
    with Proxy(shared.url, certificate=certificate) as proxy:
        patient = RetryPolicy(total_sec=60)
        began = time.monotonic()
        with pytest.raises(errors.TransportError, match="CERTIFICATE_VERIFY_FAILED"):
            connect(proxy.url, shared.token, retry=patient).runs_page()
        assert time.monotonic() - began < 30, "tried again"
        assert connect(proxy.url, shared.token, verify=certificate[0]).runs_page()
        assert connect(proxy.url, shared.token, verify=False).runs_page()
