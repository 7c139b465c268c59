"""The REST API of Agent Lightning, whose rollouts are samples of a farm.

Its clients and its trainer (`AgentLightningSyncClient`, `AglRolloutManager`) use it in place of its
own server. Model calls are those that the farm's gateway recorded, so agents call models through
the gateway, and the routes of Agent Lightning's own proxy and controller do not exist.
"""

from __future__ import annotations

import hmac
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .._sync_farm import Farm
from ..convert import Sample
from ..convert._rows import sampled_runs, token_rows
from ..errors import NotFoundError, RolloutError
from ..farm_models import Completion, InlineTask, ModelEndpoint

_ATTEMPT = "0"
_PREFIX = "agl-"
_METADATA = "agent_lightning"
_RETRY_AFTER_SEC = 5


@dataclass
class _Rollout:
    """A rollout, as far as this process knows it."""

    request: Mapping[str, Any]
    created_at: float
    completion: Completion | None = None
    events: list[dict[str, Any]] = field(default_factory=list)


class _HttpError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class RolloutServer:
    """Serves rollouts of Agent Lightning by samples of a farm, each a group of one.

    The farm's consumer belongs to the server. A rollout that the client deletes is acknowledged, or
    cancelled if it runs. A server that is started again knows the rollouts that were not deleted.
    """

    def __init__(
        self,
        farm: Farm,
        task_of: Callable[[Any], str | InlineTask],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str = "",
        consumer: str | None = None,
        reward_key: str | None = None,
    ) -> None:
        """Listen, and begin to read completions.

        Args:
            farm: The farm.
            task_of: The task for the input of a rollout.
            host: Address to listen on.
            port: Port; 0 lets the system choose one.
            key: Key that clients must have.
            consumer: Reader of completions; default the first one of the farm.
            reward_key: The number of `rewards` that is the reward, in place of `reward`.
        """
        self._farm = farm
        self._task_of = task_of
        self._key = key
        self._consumer = consumer
        self._reward_key = reward_key
        self._lock = threading.Lock()
        self._rollouts: dict[str, _Rollout] = {}
        self._models: dict[tuple[str, str], dict[str, Any]] = {}
        self._pause: dict[str, Any] = {"retry_after_seconds": _RETRY_AFTER_SEC, "reason": None}
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._http = _http_server(self, host, port)
        self.url = f"http://{host}:{self._http.server_address[1]}"
        """Its URL."""
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._http.serve_forever, self._collect)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> RolloutServer:
        """Return the server."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.close()

    def close(self) -> None:
        """Stop. Rollouts go on in the farm."""
        self._stopping.set()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join()

    def _collect(self) -> None:
        # Short waits, so that it ends soon after `close`.
        after = 0
        try:
            while not self._stopping.is_set():
                page = self._farm.page(self._consumer, after=after, limit=1000, wait_sec=1)
                after = page.next_after
                for completion in page.completions:
                    self._ended(completion)
        except RolloutError as error:
            self._failure = error

    def _ended(self, completion: Completion) -> None:
        rollout_id = completion.group.removeprefix(_PREFIX)
        with self._lock:
            found = self._rollouts.get(rollout_id)
            if found is None:
                # Of an earlier process.
                given = completion.metadata.get(_METADATA, {})
                found = _Rollout(given, completion.at.timestamp())
                self._rollouts[rollout_id] = found
            found.completion = completion

    def answer(
        self, method: str, path: str, query: Mapping[str, list[str]], body: Any
    ) -> tuple[int, Any]:
        """Return the status and the body of the answer to a request."""
        if self._failure is not None:
            raise _HttpError(503, f"cannot read completions: {self._failure}")
        parts = tuple(unquote(part) for part in path.strip("/").split("/"))
        match (method, *parts):
            case ("POST", "api", "rollouts"):
                return 201, [self._create(one) for one in body]
            case ("GET", "api", "rollouts"):
                return 200, self._list(query)
            case ("GET", "api", "rollouts", "terminal"):
                return 200, self._terminal(
                    _number(query, "after", 0), _number(query, "limit", 1000)
                )
            case ("GET", "api", "rollouts", rollout_id):
                document = self._document(rollout_id, self._found(rollout_id))
                return 200, {"rollout": document, "attempts": [_ATTEMPT]}
            case ("DELETE", "api", "rollouts", rollout_id):
                self._delete(rollout_id)
                return 204, None
            case ("GET", "api", "rollouts", rollout_id, "events"):
                return 200, self._events(rollout_id, query)
            case ("POST", "api", "rollouts", rollout_id, "attempt", _, "events"):
                return 200, self._add_event(rollout_id, body)
            case ("POST", "api", "models"):
                self._models.update({(one["model"], one["endpoint"]): one for one in body})
                return 201, body
            case ("DELETE", "api", "models"):
                self._models.clear()
                return 200, {"status": "ok"}
            case (_, "proxy", verb) if (method, verb) in _PAUSES:
                return 200, self._paused(verb, body or {})
        raise _HttpError(404, f"cannot find {method} {path}")

    def is_allowed(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request has the key."""
        given = headers.get("authorization", "").removeprefix("Bearer ")
        given = given or headers.get("x-api-key", "")
        return not self._key or hmac.compare_digest(given.encode(), self._key.encode())

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        rollout_id = request.get("rollout_id") or uuid.uuid4().hex
        with self._lock:
            known = self._rollouts.get(rollout_id)
        if known is None:
            kept = {name: value for name, value in request.items() if name != "rollout_id"}
            self._farm.submit(
                self._task_of(request.get("input")),
                1,
                group=f"{_PREFIX}{rollout_id}",
                model=self._model(),
                consumer=self._consumer,
                deadline_sec=(request.get("config") or {}).get("timeout_seconds"),
                metadata={_METADATA: kept},
            )
            with self._lock:
                # Its completion may have come first.
                known = self._rollouts.setdefault(rollout_id, _Rollout(kept, time.time()))
        return self._document(rollout_id, known)

    def _model(self) -> ModelEndpoint | None:
        models = list(self._models)
        return ModelEndpoint(*models[-1]) if models else None

    def _found(self, rollout_id: str) -> _Rollout:
        with self._lock:
            found = self._rollouts.get(rollout_id)
        if found is not None:
            return found
        try:
            status = self._farm.group(f"{_PREFIX}{rollout_id}")
        except NotFoundError:
            status = None
        if status is None or status.n is None:
            raise _HttpError(404, f"Rollout not found: {rollout_id}")
        # It was begun by an earlier process, and its completion has yet to come.
        return _Rollout({}, time.time())

    def _list(self, query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        with self._lock:
            rollouts = list(self._rollouts.items())
        documents = [self._document(rollout_id, one) for rollout_id, one in rollouts]
        states = query.get("state_in", [])
        matches = [one for one in documents if one["status"]["state"] in states]
        return matches[: _number(query, "limit", 500)]

    def _terminal(self, after: int, limit: int) -> dict[str, Any]:
        """Return ended rollouts after a cursor, which is that of their completions."""
        with self._lock:
            ended = [
                (one.completion.cursor, rollout_id, one)
                for rollout_id, one in self._rollouts.items()
                if one.completion is not None
            ]
        page = sorted(one for one in ended if one[0] > after)[:limit]
        items = [
            {
                "rollout_id": rollout_id,
                "state": _state(one.completion),
                "data_id": _data_id(one.request.get("input")),
                "is_train": one.request.get("is_train", True),
            }
            for _, rollout_id, one in page
        ]
        next_after = page[-1][0] if page else after
        return {"items": items, "next_after": next_after, "total_terminal": len(ended)}

    def _delete(self, rollout_id: str) -> None:
        with self._lock:
            found = self._rollouts.pop(rollout_id, None)
        if found is not None and found.completion is not None:
            self._farm.ack(found.completion)
        elif found is not None:
            self._farm.cancel(f"{_PREFIX}{rollout_id}")

    def _document(self, rollout_id: str, found: _Rollout) -> dict[str, Any]:
        completion = found.completion
        updated = found.created_at if completion is None else completion.at.timestamp()
        status = {
            "state": _state(completion),
            "last_attempt_id": _ATTEMPT,
            "error_message": None if completion is None else _error_message(completion),
            "version": 1 if completion is None else 2,
            "created_at": found.created_at,
            "updated_at": updated,
        }
        return {
            "rollout_id": rollout_id,
            "input": found.request.get("input"),
            "is_train": found.request.get("is_train", True),
            "config": found.request.get("config") or {},
            "metadata": found.request.get("metadata") or {},
            "status": status,
        }

    def _events(self, rollout_id: str, query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        found = self._found(rollout_id)
        events = list(found.events)
        if found.completion is not None:
            is_triplet = query.get("format") == ["triplet"]
            events = self._recorded(found.completion, is_triplet) + events
        kinds = query.get("event_type")
        return [
            {"rollout_id": rollout_id, "attempt_id": _ATTEMPT, **event}
            for event in events
            if kinds is None or event["event_type"] in kinds
        ]

    def _recorded(self, completion: Completion, is_triplet: bool) -> list[dict[str, Any]]:
        try:
            trajectories = self._farm.calls(completion)
        except NotFoundError:
            trajectories = ()
        sample = Sample(completion, trajectories, self._reward_key)
        version = completion.policy.requested
        data = [_call(*call, version, is_triplet) for call in _calls(sample)]
        at = completion.at.timestamp()
        events = [{"event_type": "model_request", "timestamp": at, "data": one} for one in data]
        if sample.verdict is not None:
            reward = {"value": sample.verdict, "source": "rollout"}
            events.append({"event_type": "reward", "timestamp": at, "data": reward})
        return events

    def _add_event(self, rollout_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        event = {
            "event_type": body["event_type"],
            "timestamp": time.time(),
            "data": body.get("data", {}),
        }
        self._found(rollout_id).events.append(event)
        return {"rollout_id": rollout_id, "attempt_id": _ATTEMPT, **event}

    def _paused(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if verb == "pause":
            self._farm.pause()
            self._pause["reason"] = body.get("reason")
            self._pause["retry_after_seconds"] = body.get("retry_after_seconds", _RETRY_AFTER_SEC)
        elif verb == "resume":
            self._farm.resume()
        status = self._farm.info().status
        is_paused = status is not None and status.pause is not None
        in_flight = 0 if status is None else status.begun_samples
        return {**self._pause, "paused": is_paused, "inflight": in_flight}


_PAUSES = {("POST", "pause"), ("POST", "resume"), ("GET", "state")}


def _http_server(server: RolloutServer, host: str, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_method(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            try:
                if parts.path == "/healthz":
                    status, document = 200, {"status": "ok"}
                elif not server.is_allowed({k.lower(): v for k, v in self.headers.items()}):
                    raise _HttpError(401, "Invalid or missing API key")
                else:
                    given = json.loads(body) if body else None
                    query = parse_qs(parts.query)
                    status, document = server.answer(self.command, parts.path, query, given)
            except _HttpError as error:
                status, document = error.status, {"detail": str(error)}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                status, document = 422, {"detail": f"{type(error).__name__}: {error}"}
            except RolloutError as error:
                status, document = 503, {"detail": str(error)}
            self.send_document(status, document)

        do_GET = do_POST = do_DELETE = handle_method  # noqa: N815

        def send_document(self, status: int, document: Any) -> None:
            text = b"" if document is None else json.dumps(document).encode()
            head = f"HTTP/1.1 {status} {self.responses[status][0]}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
            # At once: a second packet would wait for an acknowledgement of the first.
            self.wfile.write(head.encode() + text)

    return ThreadingHTTPServer((host, port), Handler)


def _state(completion: Completion | None) -> str:
    if completion is None:
        return "running"
    return "succeeded" if completion.outcome in ("completed", "truncated") else "failed"


def _error_message(completion: Completion) -> str | None:
    if _state(completion) == "succeeded":
        return None
    message = (completion.error or {}).get("message")
    reason = completion.reason or completion.cause
    return str(message or f"the sample is {completion.outcome}: {reason}")


def _data_id(given: Any) -> str:
    if not isinstance(given, dict):
        return ""
    return str(given.get("data_id") or given.get("instance_id") or "")


def _calls(sample: Sample) -> list[tuple[list[int], list[int], list[float] | None]]:
    """Return prompt, reply and log probabilities of each call."""
    calls = []
    for row in token_rows(sample.trajectories):
        ids, offset = row.prompt_ids + row.response_ids, len(row.prompt_ids)
        for begin, end in sampled_runs(row.mask):
            logprobs = None if row.logprobs is None else row.logprobs[begin:end]
            calls.append((ids[: offset + begin], row.response_ids[begin:end], logprobs))
    return calls


def _call(
    prompt: list[int],
    reply: list[int],
    logprobs: list[float] | None,
    version: int,
    is_triplet: bool,
) -> dict[str, Any]:
    server = {"model": None, "version": version}
    if is_triplet:
        return {
            "prompt_token_ids": prompt,
            "response_token_ids": reply,
            "response_log_probs": logprobs,
            "server": server,
        }
    choice: dict[str, Any] = {"index": 0, "token_ids": reply}
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"logprob": one} for one in logprobs]}
    response = {"prompt_token_ids": prompt, "choices": [choice]}
    return {"request": {}, "response": response, "server": server, "status": "ok"}


def _number(query: Mapping[str, list[str]], name: str, default: int) -> int:
    values = query.get(name)
    return int(values[-1]) if values else default
