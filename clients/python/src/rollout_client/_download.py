"""Content as files: whole, with the digest that the server stated, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from ._effects import Block, Close, Lost, Open, Program, Read, Reply
from ._executor_operations import blob_request, digest_of
from ._operations import ItemRef, Request, RunRef
from ._programs import Context, artifact_request, artifacts, attempt, back_off, export_request
from ._retry import RetryClock
from .errors import AnswerError, ContentError
from .executor_models import ContentReference
from .models import Artifact, Export, ExportFormat


@dataclass(frozen=True)
class _Expected:
    """Content whose digest the server has stated."""

    name: str
    digest: str


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

    def keep(self, expected: _Expected | None) -> None:
        found = f"sha256:{self._hasher.hexdigest()}"
        if expected is not None and found != expected.digest:
            raise ContentError(
                f"cannot keep {expected.name}: its content has the digest {found}, "
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
    """Write an artifact to a file."""
    found: Artifact | None
    if isinstance(artifact, Artifact):
        path, found = artifact.path, artifact
    else:
        path = artifact
        listed = yield from artifacts(context, run, item)
        found = next((one for one in listed if one.path == path), None)
    expected = None if found is None else _Expected(path, found.digest)
    yield from _to_file(context, artifact_request(run, item, path), to, expected)
    return to


def download_content(
    context: Context, run: RunRef, content: ContentReference, to: Path
) -> Program[Path]:
    """Write the content of a reference to a file."""
    digest = digest_of(content)
    yield from _to_file(context, blob_request(run, content), to, _Expected(digest, digest))
    return to


def download_export(
    context: Context, run: RunRef, export_format: ExportFormat, to: Path
) -> Program[Export]:
    """Write an export to a file."""
    head = yield from _to_file(context, export_request(run, export_format), to, None)
    return Export(
        path=to,
        missing=_count(head, "x-rollout-missing"),
        unplanned=_count(head, "x-rollout-unplanned"),
        keys_left_out=head.headers.get("x-rollout-keys-left-out") == "true",
        # Servers of earlier versions do not state these.
        without_trajectory=_count(head, "x-rollout-without-trajectory", absent="0"),
        below_reward=_count(head, "x-rollout-below-reward", absent="0"),
        paths_left_out=_count(head, "x-rollout-paths-left-out", absent="0"),
    )


def _count(head: Reply, name: str, absent: str = "") -> int:
    text = head.headers.get(name, absent)
    if not (text.isascii() and text.isdigit()):
        raise AnswerError(f"cannot read an export: the header {name} is {text!r}, not a number")
    return int(text)


def _to_file(
    context: Context, request: Request, to: Path, expected: _Expected | None
) -> Program[Reply]:
    """Write an answer to a file, and return its head. A lost connection begins it again."""
    clock = RetryClock(context.policy)
    # Not an effect: a cancelled one could leave the file behind.
    file = _PartialFile(to)
    try:
        while True:
            head = yield from attempt(context, request, Open(request))
            lost = yield from _receive(file)
            yield Close()
            if lost is None:
                break
            yield from back_off(context, clock, request, lost)
            yield Block(file.restart)
        yield Block(lambda: file.keep(expected))
    finally:
        file.discard()
    return head


def _receive(file: _PartialFile) -> Program[Lost | None]:
    while True:
        piece: bytes | Lost | None = yield Read()
        if piece is None or isinstance(piece, Lost):
            return piece
        received = piece
        yield Block(lambda received=received: file.write(received))  # type: ignore[misc]
