"""Performer of effects over an asynchronous httpx client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from ._effects import Block, Close, Effect, Emit, Lost, Open, Program, Read, Reply, Send, Sleep
from ._operations import Request
from ._settings import Settings, socket_options
from ._transport import FILE_PIECE_BYTES, MAX_PROBLEM_BYTES, lost_by, reply_of

T = TypeVar("T")


class AsyncShell:
    """Runs programs of the core."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = httpx.AsyncClient(
            headers=settings.headers(),
            trust_env=False,
            transport=httpx.AsyncHTTPTransport(
                verify=settings.tls,
                limits=settings.limits(),
                proxy=settings.proxy,
                socket_options=socket_options(),
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def run(self, program: Program[T]) -> T:
        """Run a program that emits nothing."""
        performer = _AsyncPerformer(self._http, self._settings)
        with contextlib.closing(program):
            async with performer:
                result = None
                while True:
                    try:
                        effect = program.send(result)
                    except StopIteration as done:
                        value: T = done.value
                        return value
                    result = await performer.perform(effect)

    async def iterate(self, program: Program[None]) -> AsyncGenerator[Any, None]:
        """Run a program, and yield what it emits."""
        performer = _AsyncPerformer(self._http, self._settings)
        with contextlib.closing(program):
            async with performer:
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
                        result = await performer.perform(effect)


class _AsyncPerformer:
    """Performs the effects of one program. It holds at most one open answer."""

    def __init__(self, http: httpx.AsyncClient, settings: Settings) -> None:
        self._http = http
        self._settings = settings
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] = _no_pieces()

    async def __aenter__(self) -> _AsyncPerformer:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    async def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return await self._send(effect.request)
        if isinstance(effect, Open):
            return await self._open(effect.request)
        if isinstance(effect, Read):
            return await self._read()
        if isinstance(effect, Close):
            return await self._close()
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds)
        if isinstance(effect, Block):
            return await _in_thread(effect.function)
        raise TypeError(f"cannot perform {effect!r} here")

    async def _send(self, request: Request) -> Reply | Lost:
        try:
            response = await self._http.send(self._build(request))
        except httpx.RequestError as error:
            return lost_by(error)
        return reply_of(response, response.content)

    async def _open(self, request: Request) -> Reply | Lost:
        await self._close()
        try:
            self._response = await self._http.send(self._build(request), stream=True)
            self._pieces = self._response.aiter_bytes()
            if self._response.is_success:
                return reply_of(self._response, b"")
            body = b""
            async for piece in self._pieces:
                body += piece
                if len(body) > MAX_PROBLEM_BYTES:
                    break
            reply = reply_of(self._response, body)
        except httpx.RequestError as error:
            return lost_by(error)
        await self._close()
        return reply

    async def _read(self) -> bytes | Lost | None:
        try:
            return await anext(self._pieces, None)
        except httpx.RequestError as error:
            return lost_by(error)

    async def _close(self) -> None:
        response, self._response, self._pieces = self._response, None, _no_pieces()
        if response is not None:
            await response.aclose()

    def _build(self, request: Request) -> httpx.Request:
        return self._http.build_request(
            request.method,
            self._settings.url + request.path,
            headers=dict(request.headers),
            content=request.body if request.file is None else _pieces_of(request.file),
            timeout=self._settings.timeout(request),
        )


async def _no_pieces() -> AsyncIterator[bytes]:
    return
    yield b""


async def _pieces_of(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await _in_thread(lambda: file.read(FILE_PIECE_BYTES)):
            yield piece


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a thread. Cancelled, it waits for the thread, which may use a file."""
    call = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise
