"""Packages of trainers, which a test needs as they are."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

VARIABLE = "ROLLOUT_TEST_ADAPTER"
"""Variable with the package whose tests must run; tests of others are skipped without it."""


def required(package: str, module: str) -> Any:
    """Import a module of a package, or skip the tests of this file."""
    if os.environ.get(VARIABLE) == package:
        return importlib.import_module(module)
    return pytest.importorskip(module)
