"""Packages of trainers, which a test needs as they are."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

VARIABLE = "ROLLOUT_TEST_ADAPTER"
"""The adapter whose tests must run; others are skipped without its package."""


def required(adapter: str, module: str) -> Any:
    """Import a module that an adapter is tested with, or skip the tests of this file."""
    if os.environ.get(VARIABLE) == adapter:
        return importlib.import_module(module)
    return pytest.importorskip(module)
