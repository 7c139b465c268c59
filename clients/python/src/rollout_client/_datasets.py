"""Upload of directories of tasks, by the digest of their archive."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import _operations as operations
from ._effects import Block, Program
from ._programs import Context, call
from .errors import NotFoundError

_SKIPPED = ".git"
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class _Archive:
    path: Path
    digest: str
    """SHA-256 in hexadecimal digits."""
    size_bytes: int


def upload(context: Context, directory: Path) -> Program[str]:
    """Upload a directory unless the server has it. Returns its path in documents."""
    name = directory.resolve().name
    if not name:
        raise ValueError(f"cannot upload {directory}: it has no name")
    # Not an effect: a cancelled one could leave the directory behind.
    scratch = tempfile.TemporaryDirectory(prefix="rollout-")
    try:
        to = Path(scratch.name) / "dataset.tar"
        archive: _Archive = yield Block(lambda: _pack(directory, name, to))
        arguments = {"digest": archive.digest}
        try:
            yield from call(context, operations.build(operations.DATASET, arguments))
        except NotFoundError:
            request = operations.upload(archive.digest, archive.path, archive.size_bytes)
            yield from call(context, request)
    finally:
        scratch.cleanup()
    return f"dataset:{archive.digest}/{name}"


def _pack(directory: Path, name: str, to: Path) -> _Archive:
    """Pack a directory below its own name: equal trees give equal bytes.

    Raises:
        ValueError: Something in it is no file, directory or link.
        OSError: It cannot be read.
    """
    with tarfile.open(to, "w", format=tarfile.GNU_FORMAT) as archive:
        for path, inner in _walk(directory, name):
            _add(archive, path, inner)
    hasher = hashlib.sha256()
    with to.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            hasher.update(piece)
    return _Archive(to, hasher.hexdigest(), to.stat().st_size)


def _walk(path: Path, inner: str) -> Iterator[tuple[Path, str]]:
    yield path, inner
    for name in sorted(os.listdir(path)):
        below = path / name
        if name == _SKIPPED:
            continue
        if below.is_dir() and not below.is_symlink():
            yield from _walk(below, f"{inner}/{name}")
        else:
            yield below, f"{inner}/{name}"


def _add(archive: tarfile.TarFile, path: Path, inner: str) -> None:
    # Owner, time and most of the mode are left out: they differ between copies.
    member = tarfile.TarInfo(inner)
    found = path.lstat() if "/" in inner else path.stat()
    if stat.S_ISLNK(found.st_mode):
        member.type = tarfile.SYMTYPE
        member.linkname = os.readlink(path)
        archive.addfile(member)
    elif stat.S_ISDIR(found.st_mode):
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(member)
    elif stat.S_ISREG(found.st_mode):
        member.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
        member.size = found.st_size
        with path.open("rb") as file:
            archive.addfile(member, file)
    else:
        raise ValueError(f"cannot pack {path}: it is no file, directory or link")
