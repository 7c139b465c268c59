"""The asynchronous client in the form of the synchronous one, so that tests hold for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from rollout_client import AsyncClient, Client


class _BlockingClient:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = AsyncClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> _BlockingClient:
        self._loop.run_until_complete(self._client.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._client.__aexit__(*error))
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if inspect.isasyncgen(result):
                return self._iterate(cast("AsyncGenerator[Any, None]", result))
            return self._loop.run_until_complete(result)

        return call

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


def blocking_client(*arguments: Any, **options: Any) -> Client:
    """Make an asynchronous client that is used as a synchronous one."""
    return cast(Client, _BlockingClient(*arguments, **options))
