"""TRL: rollouts of `GRPOTrainer` from a farm.

The gateway of the farm's job must record tokens (`capture: tokens`). The model server is the
trainer's: it has the weights that the trainer gave it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._sync_farm import Farm
from ..convert import Sample, TokenRow, token_rows
from ..errors import NotFoundError
from ..farm_models import CompletedGroup, InlineTask, ModelEndpoint

VERDICT = "rollout_reward"
"""Key of the rewards that the reward function gets."""

TaskOf = Callable[[Any], "str | InlineTask"]
"""The task for a prompt."""


def verdict_reward(*, rollout_reward: list[float | None], **_others: Any) -> list[float | None]:
    """Reward function of `GRPOTrainer`: the verdicts.

    `None` without one: TRL leaves the sample out of its group's baseline, with advantage 0.
    """
    return rollout_reward


class FarmRollouts:
    """A `rollout_func` of `GRPOTrainer`.

    Equal prompts in a row are one group. TRL needs a row for each: a sample without a verdict or
    without tokens is one without trained tokens. Of several trajectories of a sample the one with
    most sampled tokens is used.
    """

    def __init__(
        self,
        farm: Farm,
        task_of: TaskOf,
        *,
        consumer: str | None = None,
        model: ModelEndpoint | None = None,
        sampling: Mapping[str, Any] | None = None,
        pad_id: int = 0,
        reward_key: str | None = None,
    ) -> None:
        """Take a farm.

        Args:
            farm: The farm.
            task_of: The task for a prompt.
            consumer: Reader of completions; every process of a trainer needs one of its own.
            model: The model that agents call.
            sampling: Sampling parameters.
            pad_id: Token of samples without tokens.
            reward_key: The number of `rewards` that is the reward, in place of `reward`.
        """
        self._farm = farm
        self._task_of = task_of
        self._consumer = consumer
        self._options: dict[str, Any] = {"model": model, "sampling": sampling, "consumer": consumer}
        self._pad_id = pad_id
        self._reward_key = reward_key

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Return rollouts for the prompts of a batch, in their order."""
        version = int(trainer.state.global_step)
        self._farm.set_policy_version(version)
        submitted: list[str] = []
        for prompt, same in itertools.groupby(prompts):
            group = f"trl-{uuid.uuid4().hex}"
            count = sum(1 for _ in same)
            task = self._task_of(prompt)
            self._farm.submit(task, count, group=group, policy_version=version, **self._options)
            submitted.append(group)
        rows: dict[str, list[Any]] = {}
        for ended in self._finished(submitted):
            for name, values in self._rows(ended).items():
                rows.setdefault(name, []).extend(values)
        return rows

    def _finished(self, submitted: list[str]) -> list[CompletedGroup]:
        """Wait for groups, and return them in the order of their submission."""
        found: dict[str, CompletedGroup] = {}
        groups = self._farm.groups(self._consumer)
        try:
            for group in groups:
                if group.group in submitted:
                    found[group.group] = group
                else:
                    # Of an earlier process of the trainer.
                    self._farm.ack(group)
                if len(found) == len(submitted):
                    break
        finally:
            groups.close()
        return [found[group] for group in submitted]

    def _rows(self, group: CompletedGroup) -> dict[str, list[Any]]:
        samples = list(samples_of(self._farm, group, self._reward_key))
        self._farm.ack(group)
        empty = TokenRow([self._pad_id], [self._pad_id], [0], [0.0])
        rows = [next(iter(token_rows(sample.main().trajectories)), empty) for sample in samples]
        verdicts = [sample.verdict for sample in samples]
        pairs = list(zip(rows, verdicts, strict=True))
        return {
            "prompt_ids": [row.prompt_ids or [self._pad_id] for row in rows],
            "completion_ids": [row.response_ids for row in rows],
            "logprobs": [row.logprobs or [None] * len(row.response_ids) for row in rows],
            "env_mask": [[0] * len(row.mask) if no is None else row.mask for row, no in pairs],
            VERDICT: verdicts,
        }


def samples_of(farm: Farm, group: CompletedGroup, reward_key: str | None) -> Iterator[Sample]:
    """Yield the samples of a group, with their model calls."""
    for completion in group.completions:
        try:
            trajectories = farm.calls(completion)
        except NotFoundError:
            # No execution decided it.
            trajectories = ()
        yield Sample(completion, trajectories, reward_key)
