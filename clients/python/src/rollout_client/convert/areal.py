"""AReaL: the result of `RolloutWorkflow.arun_episode`."""

from __future__ import annotations

from typing import Any

from ._rows import Sample, token_rows


def trajectory(
    sample: Sample, *, missing_reward: float | None = None, pad_id: int = 0
) -> dict[str, list[Any]] | None:
    """Return lists for `torch.tensor`, or `None`, by which AReaL rejects a sample.

    The first dimension is the batch: a row for each trajectory, padded on the right where
    `attention_mask` is false. Types are int32 for `input_ids`, `loss_mask` and `versions`, float32
    for `logprobs` and `rewards`, bool for `attention_mask`.

    Args:
        sample: The sample.
        missing_reward: Reward of a sample without a verdict, in place of its rejection.
        pad_id: Token of the padding.
    """
    reward = missing_reward if sample.verdict is None else sample.verdict
    rows = token_rows(sample.trajectories)
    if reward is None or not rows or any(row.logprobs is None for row in rows):
        return None
    version = sample.completion.policy.requested
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    found: dict[str, list[Any]] = {
        "input_ids": [],
        "loss_mask": [],
        "logprobs": [],
        "versions": [],
        "attention_mask": [],
        "rewards": [],
    }
    for row in rows:
        prompt = len(row.prompt_ids)
        used = prompt + len(row.response_ids)
        rest = longest - used
        versions = [version if one else -1 for one in row.mask]
        found["input_ids"].append(row.prompt_ids + row.response_ids + [pad_id] * rest)
        found["loss_mask"].append([0] * prompt + row.mask + [0] * rest)
        found["logprobs"].append([0.0] * prompt + (row.logprobs or []) + [0.0] * rest)
        found["versions"].append([-1] * prompt + versions + [-1] * rest)
        found["attention_mask"].append([True] * used + [False] * rest)
        found["rewards"].append(reward)
    return found
