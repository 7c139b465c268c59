"""The parser of server-sent events."""

from __future__ import annotations

import random

import pytest

from rollout_client._sse import ServerEvent, SseParser
from rollout_client.errors import AnswerError

STREAM = (
    "\ufeff: a comment\n"
    "id: 1\nevent: run_started\ndata: {}\n\n"
    "id:2\r\nevent:é✓\r\ndata: first\r\ndata\r\ndata:  third\r\n\r\n"
    "data: crs\rid: 3\r\r"
    ":\n\n"
    "event: without data\n\n"
    "retry: 1500\nid: a\0b\nignored: x\ndata: last\n\n"
    "data: without an end"
).encode()

EVENTS = [
    ServerEvent("run_started", "{}", "1"),
    ServerEvent("é✓", "first\n\n third", "2"),
    ServerEvent("message", "crs", "3"),
    ServerEvent("message", "last", "3"),
]


def parsed(pieces: list[bytes]) -> list[ServerEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def test_stream_in_one_piece_gives_its_events() -> None:
    assert parsed([STREAM]) == EVENTS


def test_stream_cut_anywhere_gives_the_same_events() -> None:
    for at in range(len(STREAM) + 1):
        assert parsed([STREAM[:at], b"", STREAM[at:]]) == EVENTS, at
    assert parsed([STREAM[at : at + 1] for at in range(len(STREAM))]) == EVENTS


def test_stream_in_random_pieces_gives_the_same_events() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        cuts = sorted(chance.choices(range(len(STREAM) + 1), k=chance.randrange(20)))
        pieces = [
            STREAM[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)
        ]
        assert parsed(pieces) == EVENTS, seed


def test_event_beyond_the_limit_is_refused() -> None:
    parser = SseParser(max_event_bytes=100)
    for _ in range(3):
        assert len(parser.feed(b"data: " + 60 * b"x" + b"\n\n")) == 1
    with pytest.raises(AnswerError, match="more than 100 bytes"):
        for _ in range(3):
            parser.feed(b"data: " + 60 * b"x" + b"\n")
    with pytest.raises(AnswerError, match="more than 100 bytes"):
        SseParser(max_event_bytes=100).feed(101 * b"x")
