"""verifiers: `Episode` with one `Trace` (verifiers.v1), as on its wire and in `traces.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._settings import VERSION
from ..farm_models import Completion, Trajectory
from ._rows import Sample, sampled_runs

TRACE_VERSION = 1
"""Version of the form of traces."""

_BOUNDARIES = {
    "infrastructure": "SandboxError",
    "agent": "HarnessError",
    "verifier": "TaskError",
    "task": "TaskError",
}


def episode(
    sample: Sample,
    task_data: Mapping[str, Any],
    *,
    env_id: str = "rollout",
    task_type: str = "Task",
    model: str | None = None,
) -> dict[str, Any]:
    """Return the record of an episode, for `WireEpisode.model_validate`.

    Without a verdict the reward is `None`, `ok` is false, and `errors` has the cause. Messages have
    token ids and no text. A trajectory with an unknown log probability has no token ids.

    Args:
        sample: The sample.
        task_data: Data of the task, passed on.
        env_id: Id of the environment.
        task_type: Name of the class of the task.
        model: Name of the model.
    """
    task = {"type": task_type, "data": dict(task_data)}
    found = trace(sample, task, model)
    return {
        "id": f"{sample.completion.farm}-{sample.completion.cursor}",
        "env": {"id": env_id, "name": None},
        "task": task,
        "ok": found["ok"],
        "is_timeout": found["is_timeout"],
        "errors": found["errors"],
        "traces": [found],
    }


def trace(sample: Sample, task: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """Return the trace of a sample."""
    completion, verdict = sample.completion, sample.verdict
    nodes = _nodes(sample.trajectories)
    sampled = [place for place, node in enumerate(nodes) if node["sampled"]]
    error = None if verdict is not None else _error(completion)
    is_timeout = completion.outcome == "truncated"
    return {
        "version": TRACE_VERSION,
        "id": f"{completion.group}-{completion.index}-{completion.cursor}",
        "verifiers": {"version": f"rollout-client {VERSION}", "commit": None},
        "task": dict(task),
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "nodes": nodes,
        "calls": [{"node": place, "model": model} for place in sampled],
        "rewards": {"reward": None if verdict is None else {"score": verdict, "weight": 1.0}},
        "metrics": {name: float(value) for name, value in completion.rewards.items()},
        "info": {"rollout": _info(completion)},
        "is_completed": True,
        "ok": error is None,
        "stop_condition": _stop_condition(is_timeout, error),
        "is_timeout": is_timeout,
        "errors": [] if error is None else [error],
    }


def _error(completion: Completion) -> dict[str, Any]:
    kind = _BOUNDARIES.get(completion.cause or "", "EnvError")
    message = str((completion.error or {}).get("message") or "")
    if not message:
        reason = completion.reason or completion.phase or "there is no verdict"
        message = f"the sample is {completion.outcome}: {reason}"
    return {"type": kind, "message": message, "status_code": None, "traceback": None}


def _stop_condition(is_timeout: bool, error: Mapping[str, Any] | None) -> str:
    if is_timeout:
        return "agent_timeout"
    if error is None:
        return "agent_completed"
    return f"{error['type'].removesuffix('Error').lower()}_error"


def _info(completion: Completion) -> dict[str, Any]:
    return {
        "cursor": completion.cursor,
        "group": completion.group,
        "index": completion.index,
        "generation": completion.generation,
        "outcome": completion.outcome,
        "policy": vars(completion.policy).copy(),
    }


def _nodes(trajectories: tuple[Trajectory, ...]) -> list[dict[str, Any]]:
    """Return the messages of all trajectories: those of shared calls are shared nodes."""
    nodes: list[dict[str, Any]] = []
    known: dict[tuple[Any, ...], int] = {}
    for trajectory in trajectories:
        parent: int | None = None
        for call, (begin, end, sampled) in _segments(trajectory):
            ids = list(trajectory.ids[begin:end])
            key = (parent, call, sampled, *ids)
            place = known.get(key)
            if place is None:
                place = known[key] = len(nodes)
                logprobs = trajectory.logprobs[begin:end] if sampled else ()
                nodes.append(_node(parent, ids, sampled, list(logprobs)))
            parent = place
    return nodes


def _segments(trajectory: Trajectory) -> list[tuple[int | None, tuple[int, int, bool]]]:
    """Return the runs of sampled and of other tokens, each with the call that it is of."""
    sampled = [one == 1 for one in trajectory.mask]
    known = [value for value, one in zip(trajectory.logprobs, sampled, strict=False) if one]
    if None in known or len(known) != sum(sampled):
        return []
    runs = sampled_runs(trajectory.mask)
    # Replies that touch are one run: then it is not known which call it is of.
    calls = trajectory.calls if len(runs) == len(trajectory.calls) else (None,) * len(runs)
    segments: list[tuple[int | None, tuple[int, int, bool]]] = []
    at = 0
    for call, (begin, end) in zip(calls, runs, strict=True):
        if at < begin:
            segments.append((call, (at, begin, False)))
        segments.append((call, (begin, end, True)))
        at = end
    return segments


def _node(
    parent: int | None, ids: list[int], sampled: bool, logprobs: list[float | None]
) -> dict[str, Any]:
    return {
        "parent": parent,
        "message": {"role": "assistant" if sampled else "user", "content": ""},
        "sampled": sampled,
        "token_ids": ids,
        "mask": [sampled] * len(ids),
        "logprobs": logprobs,
    }
