"""SkyRL: `GeneratorOutput` (skyrl.train.generators.base)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..farm_models import Completion
from ._rows import Sample, TokenRow, by_group, neutral_reward, single_row, token_rows


def generator_output(
    samples: Sequence[Sample],
    *,
    step_wise: bool = False,
    missing_reward: float | None = None,
    pad_id: int = 0,
) -> dict[str, Any]:
    """Return the output of a generator for samples, in their order.

    SkyRL needs a row for each prompt. A sample without a verdict is a row whose mask is 0; its
    reward is the mean of the verdicts of its group, which does not move the baseline.
    `trajectory_ids` has keyword arguments of `TrajectoryID`.

    Args:
        samples: One sample for each prompt of the batch.
        step_wise: A row for each trajectory, with `is_last_step`; otherwise a sample has one.
        missing_reward: Reward of samples without a verdict, in place of the mean.
        pad_id: Token of rows without tokens.

    Raises:
        MissingVerdictError: A group has no verdict.
        ValueError: A sample has several trajectories, and it is not step-wise.
    """
    groups = by_group(samples)
    output: dict[str, Any] = {
        "prompt_token_ids": [],
        "response_ids": [],
        "rewards": [],
        "loss_masks": [],
        "stop_reasons": [],
        "rollout_logprobs": [],
        "trajectory_ids": [],
        "is_last_step": [],
    }
    for sample in samples:
        completion = sample.completion
        verdict = sample.verdict
        reward = verdict
        if reward is None:
            reward = neutral_reward(groups[completion.group], missing_reward)
        rows = _rows(sample, step_wise, TokenRow([pad_id], [pad_id], [0], [0.0]))
        for row in rows:
            output["prompt_token_ids"].append(row.prompt_ids or [pad_id])
            output["response_ids"].append(row.response_ids)
            output["rewards"].append(reward)
            masked = [0] * len(row.mask)
            output["loss_masks"].append(masked if verdict is None else row.mask)
            output["stop_reasons"].append(_stop_reason(completion))
            output["rollout_logprobs"].append(row.logprobs)
            output["trajectory_ids"].append(
                {"instance_id": completion.group, "repetition_id": completion.index}
            )
            output["is_last_step"].append(row is rows[-1])
    if None in output["rollout_logprobs"]:
        output["rollout_logprobs"] = None
    if not step_wise:
        del output["is_last_step"]
    return output


def _rows(sample: Sample, step_wise: bool, empty: TokenRow) -> list[TokenRow]:
    if step_wise:
        return token_rows(sample.trajectories) or [empty]
    return [single_row(sample) or empty]


def _stop_reason(completion: Completion) -> str:
    return {"completed": "stop", "truncated": "length"}.get(completion.outcome, "error")
