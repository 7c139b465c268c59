"""rLLM: `Episode` (rllm.types)."""

from __future__ import annotations

from typing import Any

from ..farm_models import Completion
from ._rows import Sample, TokenRow, sampled_runs, token_rows

_REASONS = {"completed": "env_done", "truncated": "timeout", "cancelled": "unknown"}


def episode(
    sample: Sample,
    *,
    task_id: str | None = None,
    task: Any = None,
    name: str = "agent",
    missing_reward: float | None = None,
) -> dict[str, Any]:
    """Return an episode: a trajectory for each of the sample's, a step for each call.

    Its documents are keyword arguments of `Episode`, `Trajectory` and `Step`. Without a verdict the
    reward of a trajectory is `None`, and `termination_reason` says why. Only the last step of a
    trajectory with a reward has one.

    Args:
        sample: The sample.
        task_id: Id of the task; by default the group's. The id of the episode is `task_id:index`.
        task: The task, passed on.
        name: Name of the agent.
        missing_reward: Reward of a sample without a verdict.
    """
    completion = sample.completion
    reward = missing_reward if sample.verdict is None else sample.verdict
    trajectories = [
        {
            "uid": f"{completion.farm}:{completion.cursor}:{place}",
            "name": name,
            "task": task,
            "steps": _steps(row, reward, completion.policy.requested),
            "reward": reward,
            "metadata": {"policy": vars(completion.policy).copy()},
        }
        for place, row in enumerate(token_rows(sample.trajectories))
    ]
    return {
        "id": f"{task_id or completion.group}:{completion.index}",
        "task": task,
        "termination_reason": _REASONS.get(completion.outcome, "error"),
        "is_correct": sample.verdict is not None and sample.verdict >= 1.0,
        "trajectories": trajectories,
        "metrics": {},
        "metadata": _metadata(completion),
    }


def _steps(row: TokenRow, reward: float | None, version: int) -> list[dict[str, Any]]:
    ids = row.prompt_ids + row.response_ids
    offset = len(row.prompt_ids)
    runs = sampled_runs(row.mask)
    steps = []
    for begin, end in runs:
        is_last = (begin, end) == runs[-1]
        step: dict[str, Any] = {
            "prompt_ids": ids[: offset + begin],
            "response_ids": row.response_ids[begin:end],
            "logprobs": [] if row.logprobs is None else row.logprobs[begin:end],
            "done": is_last,
            "weight_version": version,
        }
        if is_last and reward is not None:
            step["reward"] = reward
        steps.append(step)
    return steps


def _metadata(completion: Completion) -> dict[str, Any]:
    return {} if completion.error is None else {"error": dict(completion.error)}
