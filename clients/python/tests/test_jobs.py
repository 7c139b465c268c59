"""Jobs on a real server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon import DEADLINE_SEC, Daemon, wait_until
from rollout_client import Client, RetryPolicy, Score, errors


def test_job_runs_to_its_end(shared: Daemon, client: Client) -> None:
    run = client.submit(shared.job(), name="named", priority=7)
    assert (run.name, run.priority, run.is_final) == ("named", 7, False)
    ended = client.wait(run, timeout_sec=DEADLINE_SEC)
    assert (ended.id, ended.state, ended.code, ended.failure) == (run.id, "completed", 0, None)
    progress = ended.progress
    assert (progress.total, progress.completed, progress.mean_reward) == (1, 1, 0.5)
    assert progress.scored == Score(1, 0, 0.0, 0.5, pass_rate_low=0.0, pass_rate_high=0.0)
    assert ended.ended_at is not None
    assert ended.ended_at > ended.created_at
    assert client.run(run.id) == ended


def test_file_and_text_of_a_job_are_submitted(
    shared: Daemon, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"# A comment.\n{json.dumps(shared.job())}", encoding="utf-8")
    for document in (path, path.read_text(encoding="utf-8")):
        run = client.submit(document)
        assert client.wait(run, timeout_sec=DEADLINE_SEC).state == "completed"


def test_invalid_job_is_refused_with_every_fault(shared: Daemon, client: Client) -> None:
    with pytest.raises(errors.InvalidJobError) as caught:
        client.submit(shared.job(n_attempts=0, agents="none"))
    assert (caught.value.code, caught.value.status) == (3, 422)
    text = "\n".join(caught.value.details)
    assert "n_attempts" in text
    assert "agents" in text
    assert caught.value.request_id in str(caught.value)


def test_same_key_gives_the_same_run(shared: Daemon, connect: Callable[..., Client]) -> None:
    client, other = connect(shared.url, shared.token), connect(shared.url, shared.token)
    key = f"key-{id(client)}"
    run = client.submit(shared.job(), idempotency_key=key)
    assert other.submit(shared.job(), idempotency_key=key).id == run.id
    with pytest.raises(errors.IdempotencyConflictError) as caught:
        other.submit(shared.job(n_attempts=2), idempotency_key=key)
    assert caught.value.hints
    assert other.submit(shared.job()).id != run.id


def test_runs_are_listed_over_pages(start: Callable[..., Daemon], connect: Any) -> None:
    daemon = start("--max-running", "1")
    client: Client = connect(daemon.url, daemon.token)
    ids = [client.submit(daemon.job(), name=f"n{number % 2}").id for number in range(5)]
    assert [run.id for run in client.runs(page_size=2)] == ids[::-1]
    assert [run.id for run in client.runs(name="n1", page_size=1)] == [ids[3], ids[1]]
    page = client.runs_page(limit=3)
    assert [run.id for run in page.runs] == ids[:1:-1]
    rest = client.runs_page(limit=3, cursor=page.next)
    assert ([run.id for run in rest.runs], rest.next) == (ids[1::-1], None)
    ended = [client.wait(run, timeout_sec=DEADLINE_SEC) for run in ids]
    assert {run.state for run in ended} == {"completed"}, ended
    assert [run.id for run in client.runs(state="completed")] == ids[::-1]
    assert list(client.runs(state="failed")) == []
    assert list(client.runs(user="other")) == []


def test_run_is_paused_resumed_cancelled_and_deleted(shared: Daemon, client: Client) -> None:
    run = client.submit(shared.job(n_attempts=300, n_concurrent_trials=1))
    assert client.pause(run).state == "paused"
    assert client.resume(run.id).state != "paused"
    with pytest.raises(errors.ConflictError, match="cannot delete"):
        client.delete(run)
    with pytest.raises(errors.WaitTimeoutError) as caught:
        client.wait(run, timeout_sec=0.3)
    assert caught.value.run.id == run.id
    client.cancel(run)
    assert client.wait(run, timeout_sec=DEADLINE_SEC).state == "cancelled"
    with pytest.raises(errors.ConflictError):
        client.pause(run)

    def is_deleted() -> bool:
        # Its session may still write its results.
        try:
            client.delete(run)
        except errors.ConflictError:
            return False
        return True

    wait_until(is_deleted, "the run is deleted")
    for call in (client.run, client.cancel, client.delete, client.wait):
        with pytest.raises(errors.NotFoundError):
            call(run)


def test_server_that_is_away_is_an_error_in_time(connect: Callable[..., Client]) -> None:
    client = connect("http://127.0.0.1:1", retry=RetryPolicy(total_sec=0.5))
    with pytest.raises(errors.TransportError, match="cannot get an answer to GET") as caught:
        client.run("r")
    assert not caught.value.may_have_arrived


def test_users_see_their_own_runs(
    start: Callable[..., Daemon], connect: Any, tmp_path: Path
) -> None:
    users = {"ada": "submit", "ben": "submit", "eve": "read"}
    entries = []
    for name, role in users.items():
        digest = hashlib.sha256(f"token-{name}".encode()).hexdigest()
        entries.append(f'[[tokens]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{digest}"\n')
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("\n".join(entries), encoding="utf-8")
    daemon = start("--tokens", str(tokens))
    ada, ben, eve = (connect(daemon.url, f"token-{name}") for name in users)
    run = ada.submit(daemon.job())
    assert run.user == "ada"
    assert [found.id for found in ada.runs()] == [run.id]
    assert list(ben.runs()) == []
    with pytest.raises(errors.NotFoundError):
        ben.run(run)
    with pytest.raises(errors.ForbiddenError):
        eve.submit(daemon.job())
    for token in ("", "wrong"):
        with pytest.raises(errors.UnauthorizedError) as caught:
            list(connect(daemon.url, token).runs())
        assert "wrong" not in str(caught.value)
    assert ada.wait(run, timeout_sec=DEADLINE_SEC).state == "completed"
