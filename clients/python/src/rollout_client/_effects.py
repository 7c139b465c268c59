"""What a program of the core asks its shell to do.

A program is a generator: it yields an effect and is sent the result. The programs hold every
decision; a shell, synchronous or asynchronous, only performs effects.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ._operations import Request

T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """Send a request and read the whole answer. Result: `Reply | Lost`."""

    request: Request


@dataclass(frozen=True)
class Open:
    """Send a request and read the head of the answer. Result: `Reply | Lost`.

    The body of a `Reply` is empty if its status is 200; it is whole otherwise, and the stream is
    closed.
    """

    request: Request


@dataclass(frozen=True)
class Read:
    """Read the next bytes of the open answer. Result: `bytes | None | Lost`; `None` at its end."""


@dataclass(frozen=True)
class Close:
    """Close the open answer, if there is one. Result: `None`."""


@dataclass(frozen=True)
class Sleep:
    """Wait. Result: `None`."""

    seconds: float


@dataclass(frozen=True)
class Emit:
    """Give a value to the user of an iterator. Result: `None`."""

    value: Any


@dataclass(frozen=True)
class Block:
    """Call a function that may block, such as a write to a file. Result: what it returns."""

    function: Callable[[], Any]


Effect: TypeAlias = Send | Open | Read | Close | Sleep | Emit | Block
Program: TypeAlias = Generator[Effect, Any, T]


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    """Its status."""
    headers: Mapping[str, str]
    """Its headers; names are in lower case."""
    body: bytes
    """Its body."""


@dataclass(frozen=True)
class Lost:
    """No answer, or only a part of one."""

    message: str
    """Why."""
    may_have_arrived: bool
    """Whether the server may have got the request."""
    is_permanent: bool = False
    """Whether another attempt must fail too."""
