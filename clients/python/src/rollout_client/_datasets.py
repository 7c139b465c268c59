"""Upload of directories of tasks, by the digest of their archive."""

from __future__ import annotations

import tempfile
from pathlib import Path

from . import _operations as operations
from ._archive import Archive, pack
from ._effects import Block, Program
from ._programs import Context, call
from .errors import NotFoundError


def upload(context: Context, directory: Path) -> Program[str]:
    """Upload a directory unless the server has it. Returns its path in documents."""
    name = directory.resolve().name
    if not name:
        raise ValueError(f"cannot upload {directory}: it has no name")
    # Not an effect: a cancelled one could leave the directory behind.
    scratch = tempfile.TemporaryDirectory(prefix="rollout-")
    try:
        to = Path(scratch.name) / "dataset.tar"
        archive: Archive = yield Block(lambda: pack(directory, name, to))
        arguments = {"digest": archive.digest}
        try:
            yield from call(context, operations.build(operations.DATASET, arguments))
        except NotFoundError:
            request = operations.upload(archive.digest, archive.path, archive.size_bytes)
            yield from call(context, request)
    finally:
        scratch.cleanup()
    return f"dataset:{archive.digest}/{name}"
