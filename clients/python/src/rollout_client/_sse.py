"""Parser of server-sent events, as the HTML standard defines them."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import AnswerError

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Most bytes of an event: beyond it, the other side is no server of this API."""


@dataclass(frozen=True)
class ServerEvent:
    """An event of a stream."""

    kind: str
    """Its type; `message` without one."""
    data: str
    """Its data; lines are separated by line feeds."""
    last_id: str
    """The last id that the stream has stated, in this event or before."""


class SseParser:
    """Makes events of bytes, in whatever pieces they arrive."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._is_first_line = True
        self._line = bytearray()
        self._ended_by_cr = False
        self._kind = ""
        self._data: list[str] = []
        self._data_bytes = 0
        self._last_id = ""

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Take the next bytes, and return the events that they complete.

        Raises:
            AnswerError: An event is larger than the limit.
        """
        if not piece:
            return []
        if self._ended_by_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._ended_by_cr = piece.endswith(b"\r")
        events = []
        # `splitlines` of bytes splits at CR, LF and CRLF only.
        for part in piece.splitlines(keepends=True):
            content = part.rstrip(b"\r\n")
            self._line += content
            if len(self._line) + self._data_bytes > self._max_event_bytes:
                limit = self._max_event_bytes
                raise AnswerError(f"cannot read an event: it has more than {limit} bytes")
            event = self._end_line() if len(content) < len(part) else None
            if event is not None:
                events.append(event)
        return events

    def _end_line(self) -> ServerEvent | None:
        text = self._line.decode("utf-8", errors="replace")
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            text = text.removeprefix("\ufeff")
        if not text:
            return self._dispatch()
        name, _, value = text.partition(":")
        self._take_field(name, value.removeprefix(" "))
        return None

    def _take_field(self, name: str, value: str) -> None:
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
            self._data_bytes += len(value)
        elif name == "id" and "\0" not in value:
            self._last_id = value

    def _dispatch(self) -> ServerEvent | None:
        kind, data = self._kind or "message", self._data
        self._kind, self._data, self._data_bytes = "", [], 0
        if not data:
            return None
        return ServerEvent(kind=kind, data="\n".join(data), last_id=self._last_id)
