"""Executors on a real server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon import DEADLINE_SEC, Daemon, wait_until
from executor_jobs import executor_job
from rollout_client import Client, ConflictError, Executor, NotFoundError, PlannedTrial, errors


def planned(executor: Executor) -> dict[str, PlannedTrial]:
    return {trial.trial.agent: trial for trial in executor.planned(page_size=2)}


def test_started_trial_has_status_output_and_artifacts(
    client: Client, shared: Daemon, tmp_path: Path
) -> None:
    executor = client.executors.create(executor_job(shared))
    trials = planned(executor)
    assert list(trials) == ["writes", "heeds", "waits"]
    trial = trials["writes"]
    assert str(trial.trial) == "writes/tasks/second__1"
    for call in (executor.status, executor.cancel, executor.output, executor.artifacts):
        with pytest.raises(NotFoundError):
            call(trial)
    handle = executor.start(trial)
    assert (handle.item, handle.trial) == (trial.item, trial.trial)
    assert executor.start(trial) == handle
    status = executor.wait(handle, timeout_sec=DEADLINE_SEC)
    assert (status.state, status.outcome, status.reward) == ("settled", "completed", 0.5)
    assert list(executor.events(trial)) == []

    output = executor.output(trial)
    assert output is not None
    assert output.output_type == "trial_record"
    record = json.loads(b"".join(executor.read(output)))
    assert record["item"] == trial.item
    artifacts = {artifact.path: artifact for artifact in executor.artifacts(trial)}
    printed = artifacts["command/stdout.txt"]
    assert (printed.artifact_type, printed.size_bytes) == ("log", 6)
    to = executor.download(printed, tmp_path / "stdout.txt")
    assert to.read_bytes() == b"hello\n"
    assert b"".join(executor.read(printed.digest)) == b"hello\n"
    with pytest.raises(NotFoundError):
        list(executor.read(f"sha256:{'0' * 64}"))
    with pytest.raises(ConflictError):
        executor.control(trial, "stop")

    executor.finish()
    run = client.wait(executor.id, timeout_sec=DEADLINE_SEC)
    assert (run.kind, run.state) == ("executor", "completed")
    # Content can be read after the end, and other calls have ended.
    assert b"".join(client.executors.open(run).read(printed)) == b"hello\n"
    with pytest.raises(ConflictError):
        executor.status(trial)


def test_harness_is_watched_and_stopped(client: Client, shared: Daemon) -> None:
    executor = client.executors.create(executor_job(shared))
    trial = executor.start(planned(executor)["heeds"])
    with pytest.raises(ConflictError):
        executor.output(trial)
    events = executor.events(trial)
    first = next(events)
    assert (first.number, first.kind, first.step) == (0, "agent_step_start", None)
    receipts = []

    def is_acknowledged() -> bool:
        # The command may not have begun yet for the worker.
        receipts.append(executor.control(trial, "stop", label="enough", requested_by="test"))
        return receipts[-1].result == "acknowledged"

    wait_until(is_acknowledged, "the harness acknowledges")
    receipt = receipts[-1]
    assert (receipt.item, receipt.action, receipt.exec) == (trial.item, "stop", first.exec)
    assert receipt.control is not None
    rest = list(events)
    assert [event.number for event in (first, *rest)] == list(range(len(rest) + 1))
    assert rest[-1].kind == "control_ack"
    late = list(executor.events(trial, from_number=2))
    assert [event.number for event in late] == [event.number for event in rest[1:]]
    assert executor.status(trial).outcome == "completed"
    output = executor.output(trial)
    assert output is not None
    assert output.output_type == "trial_output_v1"
    client.cancel(executor.id)


def test_cancelled_trial_settles_as_cancelled(client: Client, shared: Daemon) -> None:
    executor = client.executors.create(executor_job(shared))
    trial = executor.start(planned(executor)["waits"])
    wait_until(lambda: executor.status(trial).state == "running", "the trial runs")
    running = executor.status(trial)
    assert running.try_id == "1-1"
    assert running.exec is not None
    with pytest.raises(errors.TrialWaitTimeoutError) as caught:
        executor.wait(trial, timeout_sec=0.2)
    assert caught.value.status is not None
    assert not caught.value.status.is_settled
    executor.cancel(trial)
    status = executor.wait(trial, timeout_sec=DEADLINE_SEC)
    assert (status.outcome, status.reward) == ("cancelled", None)
    executor.finish()
    assert client.wait(executor.id, timeout_sec=DEADLINE_SEC).state == "completed"


def test_executor_is_opened_once_for_a_key_and_found_by_its_id(
    client: Client, shared: Daemon
) -> None:
    key = uuid.uuid4().hex
    job = executor_job(shared)
    created = [client.executors.create(job, name="e", idempotency_key=key) for _ in range(2)]
    assert created[0].id == created[1].id
    with pytest.raises(errors.IdempotencyConflictError):
        client.executors.create(shared.job(), idempotency_key=key)
    assert client.executors.open(created[0].id).id == created[0].id
    client.cancel(created[0].id)
    assert client.wait(created[0].id, timeout_sec=DEADLINE_SEC).state == "cancelled"
    run = client.submit(shared.job())
    with pytest.raises(ValueError, match="its kind is job"):
        client.executors.open(run)
    with pytest.raises(ConflictError):
        list(client.executors.open(created[0].id).planned())


def test_calls_and_events_outlive_a_kill_of_the_server(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    daemon = start()
    client = connect(daemon.url, daemon.token)
    executor = client.executors.create(executor_job(daemon))
    trials = planned(executor)
    for agent in ("heeds", "waits"):
        executor.start(trials[agent])
    events = executor.events(trials["heeds"])
    before = next(events)
    restart = daemon.restart_meanwhile()
    # The call waits for the server, and for the start of the run.
    executor.cancel(trials["waits"])
    restart.join()
    after = next(event for event in events if event.exec != before.exec)
    assert after.number == 0
    wait_until(
        lambda: executor.control(trials["heeds"], "stop").result == "acknowledged",
        "the harness acknowledges",
    )
    last = [event for event in (after, *events) if event.exec == after.exec][-1]
    assert last.kind == "control_ack"
    assert executor.wait(trials["waits"], timeout_sec=DEADLINE_SEC).outcome == "cancelled"
    executor.finish()
    assert client.wait(executor.id, timeout_sec=DEADLINE_SEC).state == "completed"
