"""Patterns of `.harborignore`."""

from __future__ import annotations

import pytest

from harborignore_cases import shared_cases
from rollout_client._harborignore import Harborignore


def is_excluded(ignore: Harborignore, path: str) -> bool:
    # As a walk does: excluded directories are not entered.
    parts = path.encode().split(b"/")
    parents = (b"/".join(parts[:count]) for count in range(1, len(parts)))
    return any(ignore.excludes(parent, True) for parent in parents) or ignore.excludes(
        path.encode(), False
    )


@pytest.mark.parametrize(("text", "path", "expected"), shared_cases()["matches"])
def test_pattern_matches_as_in_the_command(text: str, path: str, expected: bool) -> None:
    assert is_excluded(Harborignore(b"", text.encode(), "tests"), path) is expected


def test_patterns_of_the_part_override_those_of_the_task() -> None:
    ignore = Harborignore(b"/tests/a\n/b\n*.tmp\n", b"!keep.tmp\n/c\n", "tests")
    found = {path: is_excluded(ignore, path) for path in ("a", "b", "c", "x.tmp", "keep.tmp")}
    assert found == {"a": True, "b": False, "c": True, "x.tmp": True, "keep.tmp": False}


def test_path_that_is_no_text_is_kept() -> None:
    ignore = Harborignore(b"", b"*\n", "tests")
    assert ignore.excludes(b"a", False)
    assert not ignore.excludes(b"\xff", False)


def test_pattern_with_many_stars_finishes() -> None:
    ignore = Harborignore(b"", b"*a" * 50 + b"\n", "tests")
    assert not ignore.excludes(b"a" * 5000 + b"b", False)
