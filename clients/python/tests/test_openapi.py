"""The client against the description of the API: it lacks no operation, field or value."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import types
import typing
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rollout_client import executor_models, farm_models, models
from rollout_client._executor_operations import EXECUTOR_OPERATIONS
from rollout_client._farm_operations import FARM_OPERATIONS
from rollout_client._operations import OPERATIONS

REPOSITORY = Path(__file__).parents[3]

MODELS: dict[str, type[Any]] = {
    "AcknowledgedDocument": farm_models.Acknowledgement,
    "ArtifactDocument": models.Artifact,
    "ArtifactList": models.ArtifactList,
    "CancelledGroupDocument": farm_models.CancelledGroup,
    "CompletionList": farm_models.CompletionPage,
    "FarmDocument": farm_models.FarmInfo,
    "FarmList": farm_models.FarmPage,
    "HandleDocument": executor_models.TrialHandle,
    "GroupDocument": farm_models.GroupStatus,
    "HostedProgress": models.Progress,
    "ItemDocument": models.Item,
    "ItemList": models.ItemPage,
    "OutputDocument": models.Output,
    "OutputList": models.OutputList,
    "PauseDocument": farm_models.PausedFarm,
    "PlannedDocument": executor_models.PlannedTrial,
    "Problem": models.Problem,
    "RunDocument": models.Run,
    "RunFailure": models.RunFailure,
    "RunList": models.RunPage,
    "ScoreFigures": models.Score,
    "SubmittedGroupDocument": farm_models.SubmittedGroup,
    "TrialArtifactList": executor_models.ArtifactReferenceList,
    "TrialList": executor_models.PlannedTrialList,
    "TrialNameDocument": executor_models.TrialName,
    "TrialOutputDocument": executor_models.OutputReferenceList,
    "TrialSpecDocument": executor_models.TrialSpec,
    "UnreadableDocument": models.UnreadableRun,
    "UnreadableFarm": farm_models.UnreadableFarm,
}

ENUMERATIONS: dict[str, Any] = {
    "ExportedFormat": models.ExportFormat,
    "HostedFarmState": farm_models.FarmState,
    "HostedKind": models.RunKind,
    "HostedRunState": models.RunState,
    "SubmittedKind": models.SubmissionKind,
}

BODIES = {
    "AcknowledgeCompletions": "POST /v1/farms/{id}/ack",
    "ControlDocument": "POST /v1/runs/{id}/trials/{item}/control",
    "OpenFarm": "POST /v1/farms",
    "PolicyVersionDocument": "POST /v1/farms/{id}/policy",
    "ResumeFarm": "POST /v1/farms/{id}/resume",
    "StartDocument": "POST /v1/runs/{id}/trials",
    "SubmitRun": "POST /v1/runs",
}

# Parts of bodies, which have no model of their own.
PARTS = {"OpenFarmSettings"}

# The client reads completions in pages.
UNUSED = {"GET /v1/farms/{id}/completions/stream"}

# The answers to this operation have keys that the description leaves out.
EXTENDED = {"GET /v1/runs/{id}/items/{item}": "ItemDocument"}


@functools.cache
def description() -> dict[str, Any]:
    path = os.environ.get("ROLLOUT_OPENAPI") or REPOSITORY / "docs" / "openapi.json"
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def schemas() -> dict[str, Any]:
    found: dict[str, Any] = description()["components"]["schemas"]
    return found


def described() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in description()["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            if name not in UNUSED:
                yield name, operation


def properties(schema: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Return the properties of a schema, with those of its parts, and which are required."""
    if "allOf" in schema:
        parts = [properties(part) for part in schema["allOf"]]
        required = set[str]().union(*(names for _, names in parts))
        return {name: one for found, _ in parts for name, one in found.items()}, required
    if "oneOf" in schema:
        (other,) = (part for part in schema["oneOf"] if part.get("type") != "null")
        # The whole part may be absent.
        return properties(other)[0], set()
    if "$ref" in schema:
        return properties(schemas()[schema["$ref"].rpartition("/")[2]])
    return schema["properties"], set(schema.get("required", ()))


def reference(schema: dict[str, Any]) -> str | None:
    """Return the name of the schema that a schema refers to; `None` for a plain object."""
    if "oneOf" in schema:
        (schema,) = (part for part in schema["oneOf"] if part.get("type") != "null")
    if schema == {"type": "object"}:
        return None
    found: str = schema["$ref"].rpartition("/")[2]
    return found


KNOWN = {
    f"{operation.method} {operation.path}": operation
    for operation in (*OPERATIONS, *EXECUTOR_OPERATIONS, *FARM_OPERATIONS)
}


def test_client_has_every_operation_and_no_other() -> None:
    assert {name for name, _ in described()} == set(KNOWN)


def test_operations_have_every_parameter() -> None:
    for name, operation in described():
        places: dict[str, set[str]] = {"query": set(), "header": set(), "path": set()}
        for parameter in operation.get("parameters", ()):
            places[parameter["in"]].add(parameter["name"])
        known = KNOWN[name]
        # A submission is sent as JSON, which has these parameters in its body.
        query = places["query"] - (set(known.fields) if known.fields else set())
        assert query == set(known.query), name
        assert {header.lower() for header in places["header"]} == set(known.headers), name
        assert places["path"] == set(re.findall(r"{(\w+)}", known.path)), name


def test_operations_accept_what_is_answered() -> None:
    for name, operation in described():
        answers = [
            media
            for status, answer in operation["responses"].items()
            for media in answer.get("content", ())
            if status.startswith("2")
        ]
        assert set(answers) <= set(KNOWN[name].accept.split(", ")), name


def test_bodies_have_every_field() -> None:
    for name, operation in described():
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]
            if "application/json" not in content:
                assert name == "PUT /v1/datasets/{digest}"
                continue
            body = reference(content["application/json"]["schema"])
            if body is None:
                described_fields = re.findall(r"`(\w+)`", operation["requestBody"]["description"])
                assert set(described_fields) == set(KNOWN[name].fields)
                continue
            assert BODIES[body] == name
            assert set(schemas()[body]["properties"]) == set(KNOWN[name].fields)


def test_every_schema_has_a_model() -> None:
    assert set(schemas()) == {*MODELS, *ENUMERATIONS, *BODIES, *PARTS}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_has_every_field_with_its_type(name: str) -> None:
    schema, model = schemas()[name], MODELS[name]
    hints = typing.get_type_hints(model)
    found, required = properties(schema)
    assert set(found) == set(hints), name
    for field in dataclasses.fields(model):
        place = f"{name}.{field.name}"
        has_default = field.default is not dataclasses.MISSING
        assert has_default or field.name in required, f"{place} may be absent"
        check(hints[field.name], found[field.name], place)


@pytest.mark.parametrize("name", sorted(ENUMERATIONS))
def test_enumeration_has_every_value(name: str) -> None:
    assert set(schemas()[name]["enum"]) == set(typing.get_args(ENUMERATIONS[name]))


def test_states_of_items_are_those_of_the_description() -> None:
    text = schemas()["ItemDocument"]["properties"]["state"]["description"]
    assert set(re.findall(r"`(\w+)`", text)) == set(typing.get_args(models.ItemState))


def test_answers_have_known_schemas() -> None:
    for name, operation in described():
        for status, answer in operation["responses"].items():
            for media, content in answer.get("content", {}).items():
                if not media.endswith("json"):
                    continue
                schema = reference(content["schema"])
                assert schema is None or schema in MODELS, f"{name} {status}"
    for name, schema in EXTENDED.items():
        assert issubclass(models.ItemDetail, MODELS[schema]), name


SIMPLE = {"string": str, "integer": int, "number": float, "boolean": bool}


def check(hint: Any, schema: dict[str, Any], place: str) -> None:
    """Assert that a type can hold every value of a schema."""
    if "oneOf" in schema:
        others = [part for part in schema["oneOf"] if part.get("type") != "null"]
        assert type(None) in typing.get_args(hint), place
        assert len(others) == 1, place
        check(without_none(hint), others[0], place)
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        assert hint == {**MODELS, **ENUMERATIONS}[name], place
        return
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "null" in kinds:
        assert type(None) in typing.get_args(hint), place
    (kind,) = (kind for kind in kinds if kind != "null")
    hint = without_none(hint)
    if kind == "array":
        assert typing.get_origin(hint) is tuple, place
        check(typing.get_args(hint)[0], schema["items"], place)
    elif kind == "object":
        assert typing.get_origin(hint) is not None or dataclasses.is_dataclass(hint), place
    elif schema.get("format") == "date-time":
        assert hint is datetime, place
    elif typing.get_origin(hint) is typing.Literal:
        assert kind == "string", place
    else:
        assert hint is SIMPLE[kind], place


def without_none(hint: Any) -> Any:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    (found,) = (part for part in typing.get_args(hint) if part is not type(None))
    return found
