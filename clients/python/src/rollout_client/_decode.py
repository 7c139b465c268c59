"""Reading of JSON documents into frozen dataclasses, by the types of their fields."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from .errors import AnswerError

D = TypeVar("D")

# Lists of numbers are long: they are checked at once.
_NUMBERS: dict[Any, set[type]] = {int: {int}, float | None: {float, type(None)}}


def read_object(body: bytes | str, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        AnswerError: The text is something else.
    """
    try:
        document = json.loads(body)
    except ValueError as error:
        raise AnswerError(f"cannot read {what}: {error}") from error
    if not isinstance(document, dict):
        raise AnswerError(f"cannot read {what}: found no JSON object")
    return document


def decode(kind: type[D], document: Mapping[str, Any]) -> D:
    """Read a document. Unknown keys are ignored, so that a newer server can be used.

    Raises:
        AnswerError: A key is missing, or a value has another type.
    """
    values = {}
    described: Any = kind
    for name, expected in _fields(described).items():
        if name == "raw":
            values[name] = document
        elif name in document:
            values[name] = _value(expected, document[name], f"{kind.__name__}.{name}")
        elif name not in _optional(described):
            raise AnswerError(f"cannot read {kind.__name__}: `{name}` is missing")
    return kind(**values)


@functools.cache
def _fields(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _optional(kind: type[Any]) -> frozenset[str]:
    missing = dataclasses.MISSING
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is not missing or field.default_factory is not missing
    )


def _value(expected: Any, value: Any, place: str) -> Any:
    if expected is Any:
        return value
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (expected,) = (argument for argument in arguments if argument is not type(None))
        return _value(expected, value, place)
    if origin is typing.Literal and isinstance(value, str):
        # A value that a newer server has added is passed on as it is.
        return value
    if origin is tuple and isinstance(value, list):
        if set(map(type, value)) <= _NUMBERS.get(arguments[0], set()):
            return tuple(value)
        return tuple(_value(arguments[0], part, place) for part in value)
    if origin is Mapping or expected is Mapping:
        expected = dict
    if dataclasses.is_dataclass(expected) and isinstance(value, dict):
        return decode(typing.cast("type[Any]", expected), value)
    if expected is datetime and isinstance(value, str):
        return _time(value, place)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    is_wrong_bool = isinstance(value, bool) and expected is not bool
    if isinstance(expected, type) and isinstance(value, expected) and not is_wrong_bool:
        return value
    raise AnswerError(f"cannot read {place}: found {type(value).__name__}")


def _time(text: str, place: str) -> datetime:
    # Python 3.10 reads neither `Z` nor nanoseconds.
    head, _, rest = text.partition(".")
    digits = rest.rstrip("Z")
    fraction = f".{digits[:6].ljust(6, '0')}" if digits else ""
    try:
        return datetime.fromisoformat(f"{head.rstrip('Z')}{fraction}+00:00")
    except ValueError as error:
        raise AnswerError(f"cannot read {place}: {text!r} is no time in UTC") from error
