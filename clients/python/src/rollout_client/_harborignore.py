"""Patterns of `.harborignore`, which are those of `.gitignore`, as the command applies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ANY = frozenset(range(256))
_SLASH = frozenset(b"/")
_IN_NAME = _ANY - _SLASH
_SPACE = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""White space of Unicode; that of `str.rstrip` has more."""


class Harborignore:
    """Patterns for the files of one part of a task, such as `tests`."""

    def __init__(self, task: bytes, part: bytes, prefix: str) -> None:
        """Take the files of the task and of the part, and the path of the part in the task."""
        self._task = _patterns(task)
        self._part = _patterns(part)
        self._prefix = prefix.encode() + b"/"

    def excludes(self, path: bytes, is_dir: bool) -> bool:
        """Whether a path in the part is left out. What is below one that is, is not asked for."""
        try:
            path.decode()
        except UnicodeDecodeError:
            return False
        found = _last_match(self._part, path, is_dir)
        found = found or _last_match(self._task, self._prefix + path, is_dir)
        return found is not None and not found.is_exception


class _Token(NamedTuple):
    """A byte of a path: any that is accepted, and as many as there are if it is repeated."""

    accepted: frozenset[int]
    is_repeated: bool = False
    optional: int = 0
    """Number of tokens after this one that may be skipped together; it accepts nothing itself."""


_SEPARATOR = _Token(_SLASH)
_STAR = _Token(_IN_NAME, is_repeated=True)
_REST = _Token(_ANY, is_repeated=True)
_DIRECTORIES = (_Token(frozenset(), optional=2), _REST, _SEPARATOR)
"""Any number of directories."""


class _Pattern:
    """A pattern. All ways to match are followed at once: the time is linear in the path."""

    def __init__(self, tokens: Sequence[_Token], is_exception: bool, only_dirs: bool) -> None:
        self.is_exception = is_exception
        self.only_dirs = only_dirs
        self._end = 1 << len(tokens)
        # Sets of tokens, as bits.
        self._repeated = 0
        self._optional = [(1 << at, token.optional) for at, token in enumerate(tokens)]
        self._optional = [(bit, count) for bit, count in self._optional if count]
        self._accepting = [0] * 256
        for at, token in enumerate(tokens):
            self._repeated |= token.is_repeated << at
            for byte in token.accepted:
                self._accepting[byte] |= 1 << at

    def matches(self, path: bytes) -> bool:
        at = self._with_skipped(1)
        for byte in path:
            taken = at & self._accepting[byte]
            at = self._with_skipped(taken & self._repeated | (taken & ~self._repeated) << 1)
            if not at:
                return False
        return bool(at & self._end)

    def _with_skipped(self, at: int) -> int:
        """Add the tokens that are reached without another byte."""
        before = -1
        while at != before:
            before = at
            at |= (at & self._repeated) << 1
            for bit, count in self._optional:
                if at & bit:
                    at |= bit << 1 | bit << count + 1
        return at


def _last_match(patterns: Sequence[_Pattern], path: bytes, is_dir: bool) -> _Pattern | None:
    for pattern in reversed(patterns):
        if (is_dir or not pattern.only_dirs) and pattern.matches(path):
            return pattern
    return None


def _patterns(text: bytes) -> list[_Pattern]:
    lines = text.decode(errors="replace").lstrip("\ufeff").replace("\r\n", "\n").split("\n")
    found = map(_pattern, lines)
    return [pattern for pattern in found if pattern]


def _pattern(line: str) -> _Pattern | None:
    """Read a line; a comment, and one that is invalid, is no pattern."""
    if (len(line) - len(line.rstrip("\\"))) % 2:
        # A backslash at the end is one itself.
        line += "\\"
    if line.startswith("#"):
        return None
    if not line.endswith("\\ "):
        line = line.rstrip(_SPACE)
    if not line:
        return None
    is_exception = is_anchored = False
    if line.startswith(("\\!", "\\#")):
        line = line[1:]
    else:
        is_exception = line.startswith("!")
        line = line.removeprefix("!")
        is_anchored = line.startswith("/")
        line = line.removeprefix("/")
    only_dirs = line.endswith("/")
    if only_dirs:
        line = line[:-1].removesuffix("\\")
    if not is_anchored and "/" not in line and line != "**":
        line = f"**/{line}"
    if line.endswith("/**"):
        # What is in the directory, and not the directory.
        line += "/*"
    try:
        return _Pattern(_Glob(line).tokens(), is_exception, only_dirs)
    except ValueError:
        return None


class _Glob:
    """Reader of a pattern without the marks of its line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        # A literal of several bytes is one group.
        self._groups: list[tuple[_Token, ...]] = []
        self._has_classes = True

    def tokens(self) -> list[_Token]:
        """Read all.

        Raises:
            ValueError: It is invalid.
        """
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char == "?":
                self._groups.append((_Token(_IN_NAME),))
            elif char == "*":
                self._star()
            elif char == "[" and self._has_classes:
                self._class()
            elif char == "\\":
                self._literal(self._escaped())
            else:
                self._literal(char)
        if self._groups == [_DIRECTORIES]:
            return [_REST]
        return [token for group in self._groups for token in group]

    def _peek(self) -> str:
        """The next character; empty at the end."""
        return self._text[self._at : self._at + 1]

    def _escaped(self) -> str:
        char = self._peek()
        if not char:
            raise ValueError("a backslash at the end")
        self._at += 1
        return char

    def _literal(self, char: str) -> None:
        self._groups.append(tuple(_Token(frozenset((byte,))) for byte in char.encode()))

    def _star(self) -> None:
        """Read one `*` or two. Two are directories if they are a whole part of the path."""
        start = self._at - 1
        if self._peek() != "*":
            self._groups.append((_STAR,))
            return
        self._at += 1
        is_start = not self._groups or self._text[start - 1] == "/"
        is_part = is_start and self._peek() in ("", "/")
        if not is_part:
            self._groups.append((_STAR,))
            return
        is_last = not self._peek()
        self._at += 1
        if not self._groups:
            self._groups.append(_DIRECTORIES)
        elif self._groups[-1] != _DIRECTORIES:
            # In place of the `/` before, or of directories.
            self._groups[-1] = (_SEPARATOR, _REST) if is_last else (_SEPARATOR, *_DIRECTORIES)

    def _class(self) -> None:
        """Read a class; without an end, its `[` is literal."""
        start = self._at
        is_negated = self._peek() in ("!", "^")
        self._at += is_negated
        ranges: list[tuple[str, str]] = []
        is_range = False
        while char := self._peek():
            self._at += 1
            if char == "]" and ranges:
                break
            if is_range:
                ranges[-1] = (ranges[-1][0], char)
                if char < ranges[-1][0]:
                    raise ValueError("a range that ends before it starts")
                is_range = False
            elif char == "-" and ranges:
                is_range = True
            else:
                ranges.append((char, char))
        else:
            self._at = start
            self._has_classes = False
            self._literal("[")
            return
        if is_range:
            ranges.append(("-", "-"))
        accepted = frozenset(byte for low, high in ranges for byte in _bytes_between(low, high))
        self._groups.append((_Token(_ANY - accepted if is_negated else accepted),))


def _bytes_between(low: str, high: str) -> set[int]:
    """The bytes of a range in a class, which is one of bytes."""
    first, last = low.encode(), high.encode()
    if low == high:
        return set(first)
    return {*first, *last, *range(first[-1], last[0] + 1)}
