"""NeMo Gym: rows of `NAME.jsonl` and `NAME_failures.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._rows import Sample, sampled_runs, token_rows


def row(
    sample: Sample,
    *,
    task_index: int,
    agent: str,
    responses_create_params: Mapping[str, Any],
    model: str = "policy",
) -> dict[str, Any] | None:
    """Return the row of a sample; `None` if it is written nowhere, so that it is collected again.

    A sample without a verdict has no `reward`, and `_ng_failure_class`. Its failure is final
    (`_ng_failure_terminal`) if the task or the verifier caused it. Cancelled samples, and those
    that the infrastructure lost, are written nowhere. Output items have token ids, without texts.

    Args:
        sample: The sample; its index in the group is the rollout index.
        task_index: Index of the task.
        agent: Name of the agent server.
        responses_create_params: Parameters of the task's request.
        model: Name of the model.
    """
    completion, verdict = sample.completion, sample.verdict
    if completion.outcome == "cancelled" or completion.cause == "infrastructure":
        return None
    found: dict[str, Any] = {
        "_ng_task_index": task_index,
        "_ng_rollout_index": completion.index,
        "agent_ref": {"name": agent},
        "responses_create_params": dict(responses_create_params),
        "response": {
            "id": f"{completion.farm}-{completion.cursor}",
            "created_at": completion.at.timestamp(),
            "object": "response",
            "model": model,
            "output": _output(sample),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        },
    }
    if verdict is not None:
        return {**found, "reward": verdict}
    cause = completion.cause or completion.outcome
    found["_ng_failure_class"] = f"rollout_{cause}"
    if cause in ("task", "verifier"):
        found["_ng_failure_terminal"] = True
    return found


def append(path: Path, found: Mapping[str, Any]) -> Path:
    """Append a row to the file of results, or to its file of failures, and return which.

    Args:
        path: The file of results, such as `rollouts.jsonl`.
        found: The row.
    """
    if "_ng_failure_class" in found:
        path = path.with_name(f"{path.stem}_failures.jsonl")
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found, ensure_ascii=False) + "\n")
    return path


def _output(sample: Sample) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for tokens in token_rows(sample.trajectories):
        ids, offset = tokens.prompt_ids + tokens.response_ids, len(tokens.prompt_ids)
        for begin, end in sampled_runs(tokens.mask):
            item: dict[str, Any] = {
                "id": f"msg_{len(items)}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "", "annotations": []}],
            }
            if tokens.logprobs is not None:
                item["prompt_token_ids"] = ids[: offset + begin]
                item["generation_token_ids"] = tokens.response_ids[begin:end]
                item["generation_log_probs"] = tokens.logprobs[begin:end]
            items.append(item)
    return items
