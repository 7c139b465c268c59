"""Artifacts as files: whole, with the size and the digest that the server stated, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from pathlib import Path

from ._effects import Block, Close, Lost, Open, Program, Read
from ._operations import ItemRef, RunRef
from ._programs import Context, artifact_request, artifacts, attempt, back_off
from ._retry import RetryClock
from .errors import ContentError
from .models import Artifact


class _PartialFile:
    """A file beside its destination, which takes its name when it is whole."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._path = to.parent / f".rollout-{uuid.uuid4().hex}"
        self._file = self._path.open("xb")
        self._hasher = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hasher.update(piece)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._hasher = hashlib.sha256()

    def keep(self, expected: Artifact | None) -> None:
        found = f"sha256:{self._hasher.hexdigest()}"
        if expected is not None and found != expected.digest:
            raise ContentError(
                f"cannot keep {expected.path}: its content has the digest {found}, "
                f"not {expected.digest}"
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.replace(self._to)

    def discard(self) -> None:
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def download(
    context: Context, run: RunRef, item: ItemRef, artifact: Artifact | str, to: Path
) -> Program[Path]:
    """Write an artifact to a file. A lost connection begins it again."""
    expected: Artifact | None
    if isinstance(artifact, Artifact):
        path, expected = artifact.path, artifact
    else:
        path = artifact
        listed = yield from artifacts(context, run, item)
        expected = next((found for found in listed if found.path == path), None)
    request, clock = artifact_request(run, item, path), RetryClock(context.policy)
    # Not an effect: a cancelled one could leave the file behind.
    file = _PartialFile(to)
    try:
        while True:
            yield from attempt(context, request, Open(request))
            lost = yield from _receive(file)
            yield Close()
            if lost is None:
                break
            yield from back_off(context, clock, request, lost)
            yield Block(file.restart)
        yield Block(lambda: file.keep(expected))
    finally:
        file.discard()
    return to


def _receive(file: _PartialFile) -> Program[Lost | None]:
    while True:
        piece: bytes | Lost | None = yield Read()
        if piece is None or isinstance(piece, Lost):
            return piece
        received = piece
        yield Block(lambda received=received: file.write(received))  # type: ignore[misc]
