"""verl: `AgentLoopOutput` (verl.experimental.agent_loop)."""

from __future__ import annotations

from typing import Any

from ._rows import MissingVerdictError, Sample, sampled_runs, single_row


def agent_loop_output(sample: Sample, *, missing_reward: float | None = None) -> dict[str, Any]:
    """Return keyword arguments of `AgentLoopOutput`.

    verl has no mark for a sample without a verdict: it would compute a reward itself, so that such
    a sample is an error. With `missing_reward` it has this reward, and its mask is 0.

    Args:
        sample: The sample, with at most one trajectory.
        missing_reward: Reward of a sample without a verdict.

    Raises:
        MissingVerdictError: It has no verdict, or no sampled tokens.
        ValueError: It has several trajectories.
    """
    row, verdict = single_row(sample), sample.verdict
    completion = sample.completion
    reward = missing_reward if verdict is None else verdict
    if row is None or reward is None:
        lacks = "sampled tokens" if row is None else "verdict"
        raise MissingVerdictError(
            f"cannot convert sample {completion.index} of {completion.group}: it has no {lacks}"
        )
    turns = len(sampled_runs(row.mask))
    return {
        "prompt_ids": row.prompt_ids,
        "response_ids": row.response_ids,
        "response_mask": [0] * len(row.mask) if verdict is None else row.mask,
        "response_logprobs": row.logprobs,
        "reward_score": reward,
        # The prompt, the model's turns, and what it got between them.
        "num_turns": 2 * turns,
        "metrics": {},
        "extra_fields": {
            "min_global_steps": completion.policy.requested,
            "max_global_steps": completion.policy.ended,
        },
    }
