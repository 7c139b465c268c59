"""Files of tests and solutions that `.harborignore` leaves out of a run: they are not sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from ._harborignore import Harborignore

_HARBORIGNORE = b".harborignore"
_PARTS = {b"tests": (b"test.sh", _HARBORIGNORE), b"solution": (b"solve.sh", _HARBORIGNORE)}
"""Parts without ignored files, with the files that are sent always; the command has the same."""
_BUILD_FILES = (b"Dockerfile", b"docker-compose.yaml", b"docker-compose.yml")
"""Files that make a part a build context, to which `.harborignore` does not apply."""
_IGNORE_BYTES = 64 * 1024
"""Largest `.harborignore` that is applied; the command has the same limit."""


@dataclass(frozen=True)
class PartRules:
    """A part of a task without the files that `.harborignore` leaves out of a run."""

    ignore: Harborignore
    always: tuple[bytes, ...]

    def members(
        self, path: bytes, member: bytes, inner: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """What is below a directory of the part, by its path in the part."""
        for name in os.listdir(path):
            below, own = os.path.join(path, name), inner + name
            is_dir = stat.S_ISDIR(os.lstat(below).st_mode)
            if own not in self.always and self.ignore.excludes(own, is_dir):
                continue
            yield member + b"/" + name, below
            if is_dir:
                yield from self.members(below, member + b"/" + name, own + b"/")


def parts_with_rules(task: bytes) -> Iterator[tuple[bytes, PartRules]]:
    """The parts with rules of a task without links between its parts, by their paths."""
    for step in (b"", *_steps(task)):
        for name, always in _PARTS.items():
            part = step + name
            path = os.path.join(task, part)
            if ignore := _rules(task, part, always):
                yield path, PartRules(ignore, always)


def _steps(task: bytes) -> list[bytes]:
    """Steps, by their paths in the task, with a slash at the end.

    None if a link may lead from one into another or into a part: a file that one path leaves out
    may be needed by another one.
    """
    directory = os.path.join(task, b"steps")
    if not os.path.isdir(directory):
        return []
    steps = []
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if os.path.islink(path):
            return []
        if not os.path.isdir(path):
            continue
        if any(os.path.islink(os.path.join(path, entry)) for entry in os.listdir(path)):
            return []
        steps.append(b"steps/" + name + b"/")
    # The names of steps are UTF-8.
    return [step for step in steps if step.decode(errors="replace").encode() == step]


def _rules(task: bytes, part: bytes, always: tuple[bytes, ...]) -> Harborignore | None:
    """The rules for the files of a part; `None` if all are sent."""
    path = os.path.join(task, part)
    if (
        not os.path.isdir(path)
        or any(os.path.lexists(os.path.join(path, name)) for name in _BUILD_FILES)
        # The file behind the link is sent, too.
        or any(os.path.islink(os.path.join(path, name)) for name in always)
    ):
        return None
    own = _patterns(os.path.join(path, _HARBORIGNORE))
    of_task = _patterns(os.path.join(task, _HARBORIGNORE))
    if own is None or of_task is None:
        return None
    return Harborignore(of_task, own, part.decode())


def _patterns(path: bytes) -> bytes | None:
    """The content of a `.harborignore`, empty without one; `None` if it is not applied."""
    if not os.path.lexists(path):
        return b""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _IGNORE_BYTES:
        return None
    with open(path, "rb") as file:
        return file.read()
