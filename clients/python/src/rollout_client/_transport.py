"""Answers and failures of httpx as those of the core."""

from __future__ import annotations

import ssl

import httpx

from ._effects import Lost, Reply

MAX_PROBLEM_BYTES = 1024 * 1024
"""Bytes of an error after which the rest is not read."""

FILE_PIECE_BYTES = 256 * 1024
"""Bytes of a file that are sent at once."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def reply_of(response: httpx.Response, body: bytes) -> Reply:
    """Return an answer whose body was read, or has yet to be read."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(status=response.status_code, headers=headers, body=body)


def lost_by(error: httpx.HTTPError) -> Lost:
    """Return why there is no whole answer."""
    message = str(error) or type(error).__name__
    return Lost(
        message=message,
        may_have_arrived=not isinstance(error, _NOT_SENT),
        is_permanent=_has_wrong_certificate(error)
        or isinstance(error, (httpx.UnsupportedProtocol, httpx.DecodingError)),
    )


def _has_wrong_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
