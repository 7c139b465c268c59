"""Answers of the server: documents, problems and faults."""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from ._decode import decode, read_object
from ._effects import Lost, Reply
from ._operations import Request
from ._retry import Fault
from .errors import AnswerError, RolloutError, TransportError, api_error
from .models import Problem

_LONGEST_EXCERPT = 200


def fault_of(answer: Reply | Lost) -> Fault:
    """Return what decides whether to try again."""
    if isinstance(answer, Lost):
        return Fault(may_have_arrived=answer.may_have_arrived, is_permanent=answer.is_permanent)
    return Fault(
        status=answer.status,
        is_from_api=_media_type(answer) == "application/problem+json",
        retry_after_sec=retry_after(answer),
    )


def error_of(answer: Reply | Lost, request: Request, url: str) -> RolloutError:
    """Return the error for an answer that is no success, of the server at a URL."""
    action = f"{request.method} {request.path.partition('?')[0]}"
    if isinstance(answer, Lost):
        message = f"cannot get an answer to {action}: {answer.message}"
        return TransportError(
            message, request_id=request.request_id, may_have_arrived=answer.may_have_arrived
        )
    if _media_type(answer) == "application/problem+json":
        try:
            problem = decode(Problem, read_object(answer.body, "a problem"))
        except AnswerError as error:
            return error
        return api_error(problem, retry_after(answer), url)
    excerpt = answer.body[:_LONGEST_EXCERPT].decode("utf-8", errors="replace")
    return AnswerError(
        f"cannot use the answer to {action}: status {answer.status} without a problem document, "
        f"{excerpt!r}; check the URL of the server"
    )


def waits_for_start(answer: Reply | Lost) -> bool:
    """Return whether a run or a farm waits for its start, which may take any time.

    It is the run of an executor, or a farm that waits for the disk of the server.
    """
    if isinstance(answer, Lost) or _media_type(answer) != "application/problem+json":
        return False
    try:
        kind = read_object(answer.body, "a problem").get("type")
    except AnswerError:
        return False
    return isinstance(kind, str) and kind.endswith(":not-open")


def retry_after(answer: Reply) -> float | None:
    """Return the seconds of `Retry-After`; `None` without one that can be understood."""
    text = answer.headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return max(0.0, (at - datetime.now(timezone.utc)).total_seconds())


def _media_type(answer: Reply) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()
