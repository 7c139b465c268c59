"""The two clients: the same methods, with the same parameters and texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import rollout_client
from rollout_client import AsyncClient, Client, models
from rollout_client._operations import OPERATIONS


def methods(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_clients_have_the_same_methods() -> None:
    sync, asynchronous = methods(Client), methods(AsyncClient)
    assert sync.keys() == asynchronous.keys()
    assert len(sync) >= len(OPERATIONS)
    for name, method in sync.items():
        other = asynchronous[name]
        assert inspect.getdoc(method) == inspect.getdoc(other), name
        signature, expected = inspect.signature(other), inspect.signature(method)
        assert signature.parameters == expected.parameters, name
        returned = str(expected.return_annotation).replace("Generator[", "AsyncGenerator[")
        returned = returned.replace(", None, None]", ", None]")
        assert signature.return_annotation == returned, name
        assert inspect.iscoroutinefunction(other) != returned.startswith("AsyncGenerator["), name
    assert inspect.signature(Client.__init__) == inspect.signature(AsyncClient.__init__)


def test_everything_public_is_exported_and_documented() -> None:
    for name in rollout_client.__all__:
        found = getattr(rollout_client, name)
        assert not inspect.isclass(found) or found.__doc__, name
    for name, kind in inspect.getmembers(models, inspect.isclass):
        if kind.__module__ == models.__name__ and not name.endswith("List"):
            assert name in rollout_client.__all__, name
