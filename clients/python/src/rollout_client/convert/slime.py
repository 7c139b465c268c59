"""slime: `Sample` (slime.utils.types)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..farm_models import Completion
from ._rows import Sample, TokenRow, neutral_reward, token_rows


def samples(
    group: Sequence[Sample],
    *,
    group_index: int,
    first_index: int,
    missing_reward: float | None = None,
    pad_id: int = 0,
) -> list[dict[str, Any]]:
    """Return documents of `Sample.from_dict` for the samples of a group.

    A sample without a verdict is removed (`remove_sample`): slime sets its mask to 0. Its reward is
    the mean of the verdicts of the group, which does not move the baseline. Trajectories of one
    sample have the same `rollout_id`.

    Args:
        group: The samples of a group.
        group_index: Index of the group.
        first_index: Index of its first sample.
        missing_reward: Reward of samples without a verdict, in place of the mean.
        pad_id: Token of samples without tokens.

    Raises:
        MissingVerdictError: No sample has a verdict.
    """
    found: list[dict[str, Any]] = []
    for place, sample in enumerate(group):
        completion, verdict = sample.completion, sample.verdict
        reward = neutral_reward(group, missing_reward) if verdict is None else verdict
        rows = token_rows(sample.trajectories)
        for row in rows or [TokenRow([pad_id], [pad_id], [0], [0.0])]:
            found.append(
                {
                    "group_index": group_index,
                    "index": first_index + len(found),
                    "rollout_id": first_index + place,
                    "tokens": row.prompt_ids + row.response_ids,
                    "response_length": len(row.response_ids),
                    "loss_mask": row.mask,
                    "rollout_log_probs": row.logprobs,
                    "reward": reward,
                    "status": _status(completion),
                    "remove_sample": verdict is None or not rows,
                    "weight_versions": [str(completion.policy.requested)],
                    "metadata": dict(completion.metadata),
                }
            )
    return found


def _status(completion: Completion) -> str:
    statuses = {"completed": "completed", "truncated": "truncated", "cancelled": "aborted"}
    return statuses.get(completion.outcome, "failed")
