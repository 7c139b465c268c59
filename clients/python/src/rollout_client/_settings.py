"""Settings of a client: server, token, TLS, proxy and time limits."""

from __future__ import annotations

import os
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx

from ._client_file import is_loopback
from ._operations import Request

URL_VARIABLE = "ROLLOUT_API_URL"
"""Variable with the URL of the server."""

TOKEN_VARIABLE = "ROLLOUT_API_TOKEN"  # noqa: S105
"""Variable with the token."""

DEFAULT_URL = "http://127.0.0.1:4280"
"""The address at which `rollout serve` listens by default."""

Verify: TypeAlias = "bool | str | os.PathLike[str] | ssl.SSLContext"
"""Check of the server's certificate: by the usual authorities (`True`), by those of a PEM file, by
a context, or not at all (`False`)."""

VERSION = "0.1.0"

_CONNECT_SEC = 10.0
# The server shows a sign of life every 15 seconds.
_EVENTS_SEC = 50.0
_KEEP_ALIVE_SEC = 30


@dataclass(frozen=True)
class Settings:
    """Settings of a client."""

    url: str
    token: str | None = field(repr=False)
    tls: ssl.SSLContext | bool
    proxy: str | None = field(repr=False)
    timeout_sec: float

    @classmethod
    def read(
        cls,
        url: str | None,
        token: str | None,
        verify: Verify,
        timeout_sec: float,
        environment: Mapping[str, str] = os.environ,
    ) -> Settings:
        """Read the settings: arguments stand over variables.

        Raises:
            ValueError: The URL or the token cannot be used.
            OSError: The file of certificates cannot be read.
        """
        url = (url or environment.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        scheme, host = _scheme_and_host(url)
        token = environment.get(TOKEN_VARIABLE) if token is None else token
        if token is not None:
            token = token.strip()
            if not token.isascii() or not token.isprintable() or " " in token:
                # The message does not repeat it: it is a secret.
                raise ValueError("cannot use the token: it has characters that no token has")
        return cls(
            url=url,
            token=token or None,
            tls=_tls(verify) if scheme == "https" else False,
            proxy=_proxy(scheme, host),
            timeout_sec=timeout_sec,
        )

    def headers(self) -> dict[str, str]:
        """Return the headers of all requests."""
        headers = {"user-agent": f"rollout-client/{VERSION}"}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return headers

    def timeout(self, request: Request) -> httpx.Timeout:
        """Return the time limits of a request."""
        read: float | None = self.timeout_sec + request.wait_sec
        if request.is_endless:
            # Output may pause for any time: keep-alive of the connection finds a lost server.
            read = _EVENTS_SEC if "text/event-stream" in request.headers["accept"] else None
        limit = self.timeout_sec
        return httpx.Timeout(limit, connect=min(_CONNECT_SEC, limit), read=read, pool=None)

    def limits(self) -> httpx.Limits:
        """Return the limits of connections: streams hold one each, so their number has none."""
        return httpx.Limits(max_connections=None, max_keepalive_connections=20)


def socket_options() -> list[tuple[int, int, int]]:
    """Return options of sockets that find a server that is gone without a word."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    values = {
        "TCP_KEEPIDLE": _KEEP_ALIVE_SEC,
        "TCP_KEEPALIVE": _KEEP_ALIVE_SEC,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
    }
    for name, value in values.items():
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _scheme_and_host(url: str) -> tuple[str, str]:
    wrong = ValueError(
        "cannot use the URL of the server: expected http(s)://host:port, without query and "
        f"credentials; pass the token by `token` or {TOKEN_VARIABLE}"
    )
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        is_plain = not (parts.query or parts.fragment or parts.username or parts.port == 0)
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise wrong
    return parts.scheme, parts.hostname


def _tls(verify: Verify) -> ssl.SSLContext | bool:
    if isinstance(verify, (str, os.PathLike)):
        return ssl.create_default_context(cafile=os.fspath(verify))
    return verify


def _proxy(scheme: str, host: str) -> str | None:
    """Return the proxy that the environment names for a host; a server of this host has none."""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all")
