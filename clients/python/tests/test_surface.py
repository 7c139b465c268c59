"""The two clients: one is made from the other."""

from __future__ import annotations

import inspect

import pytest

import rollout_client
from rollout_client import (
    Client,
    Executor,
    Executors,
    Farm,
    Farms,
    executor_models,
    farm_models,
    models,
    search_models,
)
from sync_source import PACKAGE, SOURCES, sync_source


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_synchronous_client_is_made_from_the_asynchronous_one(name: str) -> None:
    made = (PACKAGE / SOURCES[name]).read_text(encoding="utf-8")
    assert made == sync_source(name), "run `python tests/sync_source.py`"


def test_synchronous_client_waits_for_nothing() -> None:
    for kind in (Client, Executor, Executors, Farm, Farms):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            assert not inspect.iscoroutinefunction(method), name
            assert "Async" not in str(inspect.signature(method)), name


def test_everything_public_is_exported_and_documented() -> None:
    for name in rollout_client.__all__:
        found = getattr(rollout_client, name)
        assert not inspect.isclass(found) or found.__doc__, name
    for module in (models, executor_models, farm_models, search_models):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and not name.endswith("List"):
                assert name in rollout_client.__all__, name
