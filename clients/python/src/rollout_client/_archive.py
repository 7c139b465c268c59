"""Archives of directories of tasks, byte for byte those of the command `rollout run`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_REPOSITORY = b".git"
_TASK_FILE = b"task.toml"
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

    Repositories are left out, except inside the parts of a task, which a run packs whole.

    Raises:
        ValueError: Something in it is no file, directory or link.
        OSError: It cannot be read.
    """
    root = os.fsencode(directory.resolve())
    inner = os.fsencode(name)
    members = [(inner, root), *_walk(root, inner, _first_part(root))]
    with to.open("wb") as file:
        writer = _Writer(file)
        for member, path in sorted(members):
            writer.add(member, path)
        return Archive(to, *writer.finish())


def _first_part(root: bytes) -> int:
    """Directories from the root to the first ones that are parts of a task."""
    return 1 if os.path.lexists(os.path.join(root, _TASK_FILE)) else 2


def _walk(
    path: bytes, inner: bytes, first_part: int, depth: int = 0, in_task: bool = True
) -> Iterator[tuple[bytes, bytes]]:
    is_part = in_task and depth >= first_part
    for name in os.listdir(path):
        if name == _REPOSITORY and not is_part:
            continue
        below, member = os.path.join(path, name), inner + b"/" + name
        yield member, below
        if stat.S_ISDIR(os.lstat(below).st_mode):
            of_task = in_task
            if depth + 2 == first_part:
                of_task = os.path.lexists(os.path.join(below, _TASK_FILE))
            yield from _walk(below, member, first_part, depth + 1, of_task)


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
