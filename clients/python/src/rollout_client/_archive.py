"""Archives of directories of tasks, byte for byte those of the command `rollout run`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ._upload_ignore import PartRules, parts_with_rules

_REPOSITORY = b".git"
_TASK_FILE = b"task.toml"
_READ_ENTRIES = (
    _TASK_FILE,
    b"instruction.md",
    b"trajectory.json",
    b".harborignore",
    b"environment",
    b"solution",
    b"tests",
    b"steps",
)
"""Entries of a task that a run reads; the command has the same list."""
_BLOCK_BYTES = 512
_FIELD_BYTES = 100
_PIECE_BYTES = 1024 * 1024
_LONG_NAME = b"././@LongLink"


@dataclass(frozen=True)
class Archive:
    """An archive on disk."""

    path: Path
    digest: str
    """SHA-256 in hexadecimal digits."""
    size_bytes: int


def pack(directory: Path, name: str, to: Path) -> Archive:
    """Pack a directory below its own name: equal trees give equal bytes.

    Of tasks, only the entries that a run reads are packed.

    Raises:
        ValueError: Something in it is no file, directory or link.
        OSError: It cannot be read.
    """
    root = os.fsencode(directory.resolve())
    inner = os.fsencode(name)
    with to.open("wb") as file:
        writer = _Writer(file)
        for member, path in sorted(_members(root, inner)):
            writer.add(member, path)
        return Archive(to, *writer.finish())


def _members(root: bytes, inner: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Members of an upload, as the command `rollout run` sends them."""
    yield inner, root
    if _is_task(root):
        yield from _task(root, inner)
        return
    tasks = [name for name in os.listdir(root) if _has_task(root, name)]
    if not tasks or any(os.path.islink(os.path.join(root, name)) for name in tasks):
        yield from _everything(root, inner, frozenset(tasks))
        return
    for name in tasks:
        path, member = os.path.join(root, name), inner + b"/" + name
        yield member, path
        yield from _task(path, member)


def _is_task(path: bytes) -> bool:
    return os.path.lexists(os.path.join(path, _TASK_FILE))


def _has_task(root: bytes, name: bytes) -> bool:
    path = os.path.join(root, name)
    return not name.startswith(b".") and os.path.isdir(path) and _is_task(path)


def _task(path: bytes, inner: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Entries of a task that a run reads; all if links may lead from those to others."""
    is_whole = any(_leads_elsewhere(os.path.join(path, name)) for name in _READ_ENTRIES)
    parts = {} if is_whole else dict(parts_with_rules(path))
    for name in os.listdir(path):
        is_sent = name != _REPOSITORY if is_whole else name in _READ_ENTRIES
        if is_sent:
            yield from _below(os.path.join(path, name), inner + b"/" + name, parts)


def _leads_elsewhere(path: bytes) -> bool:
    """Whether an entry of a task is a link, or has one below it that leads up."""
    if os.path.islink(path):
        return True
    if not os.path.isdir(path):
        return False
    return any(
        os.path.islink(below) and b".." in os.readlink(below).split(b"/")
        for _, below in _below(path, b"")
    )


def _below(
    path: bytes, member: bytes, parts: Mapping[bytes, PartRules] | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """A path, and all that is below it; of parts with rules, by their paths, what they leave in."""
    yield member, path
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return
    if parts and (part := parts.get(path)):
        yield from part.members(path, member)
        return
    for name in os.listdir(path):
        yield from _below(os.path.join(path, name), member + b"/" + name, parts)


def _everything(
    path: bytes, inner: bytes, tasks: frozenset[bytes], depth: int = 0, in_task: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """All but repositories, except those inside the parts of tasks."""
    for name in os.listdir(path):
        if name == _REPOSITORY and not (in_task and depth > 1):
            continue
        below, member = os.path.join(path, name), inner + b"/" + name
        yield member, below
        if stat.S_ISDIR(os.lstat(below).st_mode):
            of_task = in_task if depth else name in tasks
            yield from _everything(below, member, tasks, depth + 1, of_task)


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = hashlib.sha256()
        self._size = 0

    def add(self, member: bytes, path: bytes) -> None:
        # Owner, time and most of the mode are left out: they differ between copies.
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            self._header(member, b"2", 0o777, 0, os.readlink(path))
        elif stat.S_ISDIR(found.st_mode):
            self._header(member + b"/", b"5", 0o755, 0)
        elif stat.S_ISREG(found.st_mode):
            mode = 0o755 if found.st_mode & 0o111 else 0o644
            self._header(member, b"0", mode, found.st_size)
            self._content(path, found.st_size)
        else:
            raise ValueError(f"cannot pack {os.fsdecode(path)}: it is no file, directory or link")

    def finish(self) -> tuple[str, int]:
        """End the archive, and return its digest and its size."""
        self._write(bytes(2 * _BLOCK_BYTES))
        return self._hasher.hexdigest(), self._size

    def _header(self, name: bytes, kind: bytes, mode: int, size: int, link: bytes = b"") -> None:
        for text, long_kind in ((name, b"L"), (link, b"K")):
            if len(text) > _FIELD_BYTES:
                self._write(_block(_LONG_NAME, long_kind, 0o644, len(text) + 1, b""))
                self._padded(text + b"\0")
        self._write(_block(name, kind, mode, size, link))

    def _content(self, path: bytes, size: int) -> None:
        copied = 0
        with open(path, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                copied += len(piece)
                self._write(piece)
        if copied != size:
            raise ValueError(f"cannot pack {os.fsdecode(path)}: it changed while it was read")
        self._write(bytes(-size % _BLOCK_BYTES))

    def _padded(self, content: bytes) -> None:
        self._write(content + bytes(-len(content) % _BLOCK_BYTES))

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._hasher.update(content)
        self._size += len(content)


def _block(name: bytes, kind: bytes, mode: int, size: int, link: bytes) -> bytes:
    """Header of a member in the GNU format."""
    before = name[:_FIELD_BYTES].ljust(_FIELD_BYTES, b"\0") + b"%07o\0" % mode
    before += b"0000000\0" * 2 + b"%011o\0" % size + b"00000000000\0"
    after = kind + link[:_FIELD_BYTES].ljust(_FIELD_BYTES, b"\0") + b"ustar  \0"
    after = after.ljust(_BLOCK_BYTES - len(before) - 8, b"\0")
    checksum = sum(before) + sum(after) + 8 * ord(" ")
    return before + b"%07o\0" % checksum + after
