"""Calls: retries, errors, pages and waiting."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rollout_client import _operations, _programs, errors
from rollout_client._effects import Lost, Reply
from script import CUT, REFUSED, Script, answer, problem, run_document


def submitted(script: Script, **values: Any) -> Any:
    options = {"kind": "job", "name": None, "priority": 0, "idempotency_key": None, **values}
    request = _operations.submission({"agents": []}, **options)
    return script.run(_programs.submit(script.context, request))


def shown(script: Script) -> Any:
    return script.run(_programs.fetch_run(script.context, _operations.RUN, "r1"))


def test_submission_is_repeated_with_the_same_bytes_and_key() -> None:
    answers = [REFUSED, CUT, problem(503, "stopping"), answer(run_document(), 201)]
    script = Script(answers)
    assert submitted(script).id == "r1"
    first = script.requests[0]
    assert len(first.headers["idempotency-key"]) == 32
    assert all(request == first for request in script.requests)
    assert script.slept == [0.2, 0.4, 0.8]


def test_submissions_have_different_keys() -> None:
    scripts = [Script([answer(run_document(), 201)]) for _ in range(2)]
    for script in scripts:
        submitted(script)
    keys = {script.requests[0].headers["idempotency-key"] for script in scripts}
    assert len(keys) == 2


def test_submission_without_key_is_not_repeated_once_it_may_have_arrived() -> None:
    script = Script([REFUSED, problem(429, "busy"), CUT])
    with pytest.raises(errors.TransportError, match="cannot get an answer to POST") as caught:
        submitted(script, idempotency_key="")
    assert caught.value.may_have_arrived
    assert "idempotency-key" not in script.requests[0].headers


def test_body_of_submission_has_what_was_given() -> None:
    script = Script([answer(run_document(), 201)])
    submitted(script, name="é", priority=-5, idempotency_key="k")
    request = script.requests[0]
    assert request.headers["idempotency-key"] == "k"
    assert json.loads(request.body or b"") == {
        "kind": "job",
        "document": {"agents": []},
        "priority": -5,
        "name": "é",
    }


def test_job_is_a_document_a_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("agents: []\n", encoding="utf-8")

    def sent(document: _operations.JobDocument) -> Any:
        request = _operations.submission(
            document, kind="job", name=None, priority=0, idempotency_key=None
        )
        return json.loads(request.body or b"")["document"]

    assert sent({"agents": []}) == {"agents": []}
    assert sent("agents: []\n") == sent(path) == "agents: []\n"
    with pytest.raises(ValueError, match=r"pass a pathlib\.Path"):
        sent("job.yaml")
    with pytest.raises(ValueError, match="Out of range"):
        sent({"n": float("nan")})


def test_delete_that_finds_nothing_after_a_lost_answer_has_succeeded() -> None:
    of_proxy = Reply(504, {"content-type": "text/html"}, b"")
    for lost in (CUT, of_proxy):
        script = Script([lost, problem(404, "not-found")])
        assert script.run(_programs.delete(script.context, "r1")) is None


def test_delete_that_finds_nothing_at_first_is_an_error() -> None:
    for before in ([], [REFUSED], [problem(503, "stopping")]):
        script = Script([*before, problem(404, "not-found")])
        with pytest.raises(errors.NotFoundError):
            script.run(_programs.delete(script.context, "r1"))


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "bad-request", errors.InvalidRequestError),
        (401, "unauthorized", errors.UnauthorizedError),
        (403, "forbidden", errors.ForbiddenError),
        (404, "not-found", errors.NotFoundError),
        (409, "conflict", errors.ConflictError),
        (409, "idempotency-conflict", errors.IdempotencyConflictError),
        (413, "too-large", errors.InvalidRequestError),
        (418, "teapot", errors.ApiError),
        (422, "invalid-job", errors.InvalidJobError),
        (422, "missing-dataset", errors.MissingDatasetError),
        (500, "internal", errors.ServerError),
    ],
)
def test_problem_is_the_error_of_its_status(status: int, kind: str, error: type[Exception]) -> None:
    reply = problem(status, kind, hints=["try this"], details=["line 2: wrong"])
    with pytest.raises(errors.ApiError) as caught:
        shown(Script([reply]))
    found = caught.value
    assert type(found) is error
    assert (found.status, found.kind, found.code, found.request_id) == (status, kind, 3, "r")
    assert found.hints[0] == "try this"
    hints = "".join(f"hint: {hint}\n" for hint in found.hints)
    assert str(found) == f"cannot do it\nline 2: wrong\n{hints}status {status}, request r"
    assert len(found.hints) == (2 if status == 401 else 1)


def refused(url: str) -> str:
    script = Script([problem(401, "unauthorized")])
    context = replace(script.context, url=url)
    with pytest.raises(errors.UnauthorizedError) as caught:
        script.run(_programs.fetch_run(context, _operations.RUN, "r1"))
    return caught.value.hints[-1]


def write_client_file(state: Path, server: str, url: str) -> None:
    file = state / "rollout" / server / "client.env"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = f"export ROLLOUT_API_URL={url}\nexport ROLLOUT_API_TOKEN=secret\n"
    file.write_text(lines, encoding="utf-8")


def test_refused_token_leads_to_files_of_servers_at_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "of me"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    write_client_file(state, "up", "http://h:1")
    write_client_file(state, "serve", "http://h:2")
    wrote = "a server at this address wrote its token for shells:"
    up, serve = (f"`. '{state}/rollout/{server}/client.env'`" for server in ("up", "serve"))
    assert refused("http://h:1") == f"{wrote} {up}"
    write_client_file(state, "serve", "http://h:1")
    assert refused("http://h:1") == f"{wrote} {up} or {serve}"


@pytest.mark.parametrize("variable", ["", "relative"])
def test_refused_token_of_this_host_leads_to_files_that_exist(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    begin = "a server without `--tokens` writes its token for shells:"
    end = "`. DIR/client.env` with `--dir DIR`"
    urls = ("http://127.0.0.1:1", "http://[::1]:1", "https://LocalHost:1/base")
    for url in urls:
        assert refused(url) == f"{begin} {end}"
    state = tmp_path / ".local" / "state"
    write_client_file(state, "serve", "http://127.0.0.1:12")
    for url in urls:
        file = f"`. {state}/rollout/serve/client.env` for `rollout serve`"
        assert refused(url) == f"{begin} {file}, {end}"


@pytest.mark.parametrize(
    "url", ["https://far.example.com", "http://127.0.0.1.example.com:1", "http://10.0.0.1:1", ""]
)
def test_refused_token_of_another_host_leads_to_no_file_of_this_one(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_client_file(tmp_path, "up", "http://127.0.0.1:1")
    assert refused(url) == (
        "a server without `--tokens` writes its token to `client.env` in its directory, on its own "
        "host"
    )


def test_busy_server_is_asked_again_after_its_time() -> None:
    busy = problem(429, "busy")
    later = Reply(429, {**busy.headers, "retry-after": "5"}, busy.body)
    script = Script([later, answer(run_document())])
    shown(script)
    assert script.slept == [5]
    much_later = Reply(429, {**busy.headers, "retry-after": "3600"}, busy.body)
    with pytest.raises(errors.BusyError) as caught:
        shown(Script([much_later]))
    assert caught.value.retry_after_sec == 3600


def test_retry_after_with_a_date_in_the_past_is_no_wait() -> None:
    busy = problem(503, "stopping")
    date = {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}
    script = Script([Reply(503, {**busy.headers, **date}, busy.body), answer(run_document())])
    shown(script)
    assert script.slept == [0.2]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {"content-type": "text/html"}, b"<html>"),
        Reply(302, {"content-type": "text/html"}, b"<html>"),
        Reply(404, {"content-type": "application/problem+json"}, b"[]"),
        answer({"id": "r1"}),
        answer(run_document(priority="high")),
        answer(run_document(is_final=0)),
        answer(run_document(created_at="today")),
    ],
)
def test_answer_of_something_else_is_an_error(reply: Reply) -> None:
    with pytest.raises(errors.AnswerError):
        shown(Script([reply]))


def test_wrong_certificate_is_not_tried_again() -> None:
    lost = Lost("certificate verify failed", may_have_arrived=False, is_permanent=True)
    script = Script([lost])
    with pytest.raises(errors.TransportError, match="certificate verify failed"):
        shown(script)
    assert script.slept == []


def test_values_of_newer_servers_are_passed_on() -> None:
    run = shown(Script([answer(run_document(state="hibernating", colour="blue"))]))
    assert run.state == "hibernating"
    assert run.created_at == datetime(2026, 1, 31, 10, 0, 0, 123456, tzinfo=timezone.utc)


def test_runs_of_all_pages_are_emitted() -> None:
    pages = [
        {"runs": [run_document(id="a"), run_document(id="b")], "next": "b"},
        {"runs": [], "next": "c"},
        {"runs": [run_document(id="d")], "next": None},
    ]
    script = Script([answer(pages[0]), CUT, answer(pages[1]), answer(pages[2])])
    script.run(_programs.runs(script.context, {"state": "running", "limit": 2}))
    assert [run.id for run in script.emitted] == ["a", "b", "d"]
    paths = [request.path.partition("?")[2] for request in script.requests]
    first = "state=running&limit=2"
    assert paths == [first, f"{first}&cursor=b", f"{first}&cursor=b", f"{first}&cursor=c"]


def test_wait_ends_with_the_run() -> None:
    script = Script([answer(run_document()), answer(run_document(state="failed"))])
    assert script.run(_programs.wait(script.context, "r1", None)).state == "failed"


def test_wait_goes_on_while_a_run_waits_for_the_disk_of_the_server() -> None:
    waits = {"code": 1, "message": "no space", "is_temporary": True}
    failed = {"code": 1, "message": "no space", "is_temporary": False}
    script = Script(
        [
            answer(run_document(state="failed", failure=waits)),
            answer(run_document(state="running")),
            answer(run_document(state="failed", failure=waits)),
            answer(run_document(state="failed", failure=failed)),
        ]
    )
    found = script.run(_programs.wait(script.context, "r1", None))
    assert found.failure is not None
    assert not found.failure.is_temporary


def test_wait_ends_with_its_time() -> None:
    script = Script([answer(run_document())] * 7)
    with pytest.raises(errors.WaitTimeoutError) as caught:
        script.run(_programs.wait(script.context, "r1", 2.0))
    assert (caught.value.run.id, script.now) == ("r1", 2.0)
    script = Script([CUT] * 20)
    with pytest.raises(errors.TransportError):
        script.run(_programs.wait(script.context, "r1", 2.0))
    assert script.now <= 2.0
