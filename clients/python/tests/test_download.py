"""Artifacts as files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from rollout_client import Artifact, errors
from rollout_client._download import download
from script import CUT, OPENED, Script, answer, problem

CONTENT = b"first second"
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
ARTIFACT = Artifact("a/b", len(CONTENT), DIGEST, truncated=False)


def downloaded(script: Script, to: Path, artifact: Artifact | str = ARTIFACT) -> Any:
    return script.run(download(script.context, "r", "i", artifact, to))


def test_lost_download_begins_again(tmp_path: Path) -> None:
    to = tmp_path / "file"
    to.write_bytes(b"before")
    answers = [OPENED, b"first sec", CUT, problem(503, "stopping"), OPENED, b"first ", b"second"]
    assert downloaded(Script([*answers, None]), to) == to
    assert to.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [to]


def test_path_is_looked_up_for_its_digest(tmp_path: Path) -> None:
    listed = {"path": "a/b", "size_bytes": 12, "digest": DIGEST, "truncated": False}
    script = Script([answer({"artifacts": [listed]}), OPENED, b"first", None])
    with pytest.raises(errors.ContentError, match="its content has the digest sha256:"):
        downloaded(script, tmp_path / "file", "a/b")
    assert list(tmp_path.iterdir()) == []


def test_failed_download_changes_no_file(tmp_path: Path) -> None:
    to = tmp_path / "file"
    to.write_bytes(b"before")
    for ending in ([OPENED, b"first sec", CUT, problem(404, "not-found")], [OPENED, b"x", None]):
        with pytest.raises(errors.RolloutError):
            downloaded(Script(ending), to)
        assert to.read_bytes() == b"before"
        assert list(tmp_path.iterdir()) == [to]


def test_file_has_the_usual_mode(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    to = downloaded(Script([OPENED, CONTENT, None]), tmp_path / "file")
    assert to.stat().st_mode == usual.stat().st_mode


def test_download_to_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        downloaded(Script([]), tmp_path / "none" / "file")
