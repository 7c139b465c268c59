"""The asynchronous client in the form of the synchronous one, so that tests hold for both."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from rollout_client import AsyncClient, AsyncExecutor, AsyncExecutors, AsyncFarm, AsyncFarms, Client


class _Blocking:
    """An asynchronous object whose methods return when they have ended."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapped = wrapped
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not inspect.ismethod(found):
            return self._blocking(found)

        def call(*arguments: Any, **options: Any) -> Any:
            return self._blocking(found(*arguments, **options))

        return call

    def _blocking(self, result: Any) -> Any:
        if inspect.isasyncgen(result):
            return self._iterate(cast("AsyncGenerator[Any, None]", result))
        if isinstance(result, contextlib.AbstractAsyncContextManager):
            return self._within(result)
        if inspect.iscoroutine(result):
            result = self._loop.run_until_complete(result)
        if isinstance(result, (AsyncFarms, AsyncFarm, AsyncExecutors, AsyncExecutor)):
            return _Blocking(result, self._loop)
        return result

    @contextlib.contextmanager
    def _within(self, block: contextlib.AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        value = self._loop.run_until_complete(block.__aenter__())
        try:
            yield value
        except BaseException as error:
            left = block.__aexit__(type(error), error, error.__traceback__)
            if not self._loop.run_until_complete(left):
                raise
        else:
            self._loop.run_until_complete(block.__aexit__(None, None, None))

    def _iterate(self, values: AsyncGenerator[Any, None]) -> Iterator[Any]:
        async def following() -> tuple[bool, Any]:
            async for value in values:
                return True, value
            return False, None

        try:
            while True:
                is_there, value = self._loop.run_until_complete(following())
                if not is_there:
                    return
                yield value
        finally:
            self._loop.run_until_complete(values.aclose())


class _BlockingClient(_Blocking):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(AsyncClient(*arguments, **options), asyncio.new_event_loop())

    def __enter__(self) -> _BlockingClient:
        self._loop.run_until_complete(self._wrapped.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._wrapped.__aexit__(*error))
        self._loop.close()


def blocking_client(*arguments: Any, **options: Any) -> Client:
    """Make an asynchronous client that is used as a synchronous one."""
    return cast(Client, _BlockingClient(*arguments, **options))
