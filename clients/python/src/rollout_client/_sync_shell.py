"""Performer of effects over a synchronous httpx client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from ._effects import Block, Close, Effect, Emit, Lost, Open, Program, Read, Reply, Send, Sleep
from ._operations import Request
from ._settings import Settings, socket_options
from ._transport import FILE_PIECE_BYTES, MAX_PROBLEM_BYTES, lost_by, reply_of

T = TypeVar("T")


class SyncShell:
    """Runs programs of the core."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = httpx.Client(
            headers=settings.headers(),
            trust_env=False,
            transport=httpx.HTTPTransport(
                verify=settings.tls,
                limits=settings.limits(),
                proxy=settings.proxy,
                socket_options=socket_options(),
            ),
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def run(self, program: Program[T]) -> T:
        """Run a program that emits nothing."""
        with contextlib.closing(program), _SyncPerformer(self._http, self._settings) as performer:
            result = None
            while True:
                try:
                    effect = program.send(result)
                except StopIteration as done:
                    value: T = done.value
                    return value
                result = performer.perform(effect)

    def iterate(self, program: Program[None]) -> Generator[Any, None, None]:
        """Run a program, and yield what it emits."""
        with contextlib.closing(program), _SyncPerformer(self._http, self._settings) as performer:
            result = None
            while True:
                try:
                    effect = program.send(result)
                except StopIteration:
                    return
                if isinstance(effect, Emit):
                    yield effect.value
                    result = None
                else:
                    result = performer.perform(effect)


class _SyncPerformer:
    """Performs the effects of one program. It holds at most one open answer."""

    def __init__(self, http: httpx.Client, settings: Settings) -> None:
        self._http = http
        self._settings = settings
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def __enter__(self) -> _SyncPerformer:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return self._send(effect.request)
        if isinstance(effect, Open):
            return self._open(effect.request)
        if isinstance(effect, Read):
            return self._read()
        if isinstance(effect, Close):
            return self._close()
        if isinstance(effect, Sleep):
            return time.sleep(effect.seconds)
        if isinstance(effect, Block):
            return effect.function()
        raise TypeError(f"cannot perform {effect!r} here")

    def _send(self, request: Request) -> Reply | Lost:
        try:
            response = self._http.send(self._build(request))
        except httpx.RequestError as error:
            return lost_by(error)
        return reply_of(response, response.content)

    def _open(self, request: Request) -> Reply | Lost:
        self._close()
        try:
            self._response = self._http.send(self._build(request), stream=True)
            self._pieces = self._response.iter_bytes()
            if self._response.is_success:
                return reply_of(self._response, b"")
            body = b""
            for piece in self._pieces:
                body += piece
                if len(body) > MAX_PROBLEM_BYTES:
                    break
            reply = reply_of(self._response, body)
        except httpx.RequestError as error:
            return lost_by(error)
        self._close()
        return reply

    def _read(self) -> bytes | Lost | None:
        try:
            return next(self._pieces, None)
        except httpx.RequestError as error:
            return lost_by(error)

    def _close(self) -> None:
        response, self._response, self._pieces = self._response, None, iter(())
        if response is not None:
            response.close()

    def _build(self, request: Request) -> httpx.Request:
        return self._http.build_request(
            request.method,
            self._settings.url + request.path,
            headers=dict(request.headers),
            content=request.body if request.file is None else _pieces_of(request.file),
            timeout=self._settings.timeout(request),
        )


def _pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(FILE_PIECE_BYTES):
            yield piece
