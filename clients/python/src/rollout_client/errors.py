"""Errors of the client. Every one is a `RolloutError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._client_file import token_hint

if TYPE_CHECKING:
    from .executor_models import TrialStatus
    from .models import Problem, Run

__all__ = [
    "AnswerError",
    "ApiError",
    "BusyError",
    "ConflictError",
    "ContentError",
    "EventStreamError",
    "ForbiddenError",
    "IdempotencyConflictError",
    "InvalidGroupError",
    "InvalidJobError",
    "InvalidRequestError",
    "MissingDatasetError",
    "NotFoundError",
    "RolloutError",
    "ServerError",
    "TransportError",
    "TrialWaitTimeoutError",
    "UnauthorizedError",
    "UnavailableError",
    "WaitTimeoutError",
]


class RolloutError(Exception):
    """An error of the client or of the server."""


class TransportError(RolloutError):
    """No answer: the server cannot be reached, or the connection was lost."""

    def __init__(self, message: str, *, request_id: str, may_have_arrived: bool) -> None:
        super().__init__(message)
        self.request_id = request_id
        """The id that the request had, as in the log of the server."""
        self.may_have_arrived = may_have_arrived
        """Whether the server may have done what was asked."""


class AnswerError(RolloutError):
    """An answer that is not one of this API, such as that of a proxy."""


class ContentError(RolloutError):
    """Received content that does not have the size or the digest that the server stated."""


class EventStreamError(RolloutError):
    """The server cannot read the events of a run."""


class WaitTimeoutError(RolloutError):
    """A run did not end in time. It goes on."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run
        """The run as it was seen last."""


class TrialWaitTimeoutError(RolloutError):
    """A trial was not settled in time. It goes on."""

    def __init__(self, message: str, status: TrialStatus | None) -> None:
        super().__init__(message)
        self.status = status
        """Its status as it was seen last; `None` if its run waits for its start."""


class ApiError(RolloutError):
    """An error that the server answered."""

    def __init__(self, problem: Problem, retry_after_sec: float | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        """The whole document."""
        self.retry_after_sec = retry_after_sec
        """Seconds after which the server suggests to try again."""

    def __str__(self) -> str:
        """Return the cause, its details and hints, and the id of the request, one a line."""
        problem = self.problem
        lines = [problem.detail, *problem.details, *(f"hint: {hint}" for hint in self.hints)]
        lines.append(f"status {problem.status}, request {problem.request_id}")
        return "\n".join(lines)

    @property
    def kind(self) -> str:
        """The last word of the type, such as `not-found`."""
        return self.problem.type.rpartition(":")[2]

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self.problem.status

    @property
    def code(self) -> int:
        """The exit code that the command line has for this error."""
        return self.problem.code

    @property
    def detail(self) -> str:
        """The failed operation and its cause."""
        return self.problem.detail

    @property
    def details(self) -> tuple[str, ...]:
        """Details, such as every fault of a job document."""
        return self.problem.details

    @property
    def hints(self) -> tuple[str, ...]:
        """Suggested actions."""
        return self.problem.hints

    @property
    def request_id(self) -> str:
        """The id of the request, as in the log of the server."""
        return self.problem.request_id


class InvalidRequestError(ApiError):
    """A request that the server cannot understand (400, 405, 413, 415)."""


class UnauthorizedError(ApiError):
    """The token is missing or unknown (401)."""

    def __init__(
        self, problem: Problem, retry_after_sec: float | None = None, url: str = ""
    ) -> None:
        super().__init__(problem, retry_after_sec)
        self.url = url
        """URL of the server; empty if unknown."""

    @property
    def hints(self) -> tuple[str, ...]:
        """Suggested actions, with the commands that read the token of a server of this user."""
        return (*self.problem.hints, token_hint(self.url))


class ForbiddenError(ApiError):
    """The token's role does not allow this (403)."""


class NotFoundError(ApiError):
    """It does not exist, or not for this user (404)."""


class ConflictError(ApiError):
    """The state of the run, farm or group does not allow this, or the run is damaged (409)."""


class IdempotencyConflictError(ConflictError):
    """Another submission has this idempotency key (409)."""


class InvalidJobError(ApiError):
    """The job document has faults, listed in `details`; nothing was started (422)."""


class InvalidGroupError(ApiError):
    """The request for a group is invalid (422)."""


class MissingDatasetError(InvalidJobError):
    """The document names a dataset that was not uploaded (422)."""


class BusyError(ApiError):
    """The server takes no more for now; `retry_after_sec` says when to try again (429).

    A full farm states its limit in `problem`: `limit`, `depth` and `max`.
    """


class UnavailableError(ApiError):
    """The server cannot answer now (408, 502, 503, 504)."""


class ServerError(ApiError):
    """A fault of the server (other 5xx)."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequestError,
    403: ForbiddenError,
    404: NotFoundError,
    405: InvalidRequestError,
    408: UnavailableError,
    409: ConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidJobError,
    429: BusyError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def api_error(problem: Problem, retry_after_sec: float | None, url: str) -> ApiError:
    """Return the error for a problem of the server at a URL."""
    if problem.type.endswith(":idempotency-conflict"):
        return IdempotencyConflictError(problem, retry_after_sec)
    if problem.type.endswith(":invalid-group"):
        return InvalidGroupError(problem, retry_after_sec)
    if problem.type.endswith(":missing-dataset"):
        return MissingDatasetError(problem, retry_after_sec)
    if problem.status == 401:
        return UnauthorizedError(problem, retry_after_sec, url)
    default = ServerError if problem.status >= 500 else ApiError
    return _BY_STATUS.get(problem.status, default)(problem, retry_after_sec)
