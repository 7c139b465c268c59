"""Samples, and their model calls as rows of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ..farm_models import Completion, Trajectory


class MissingVerdictError(ValueError):
    """A sample without a verdict, or without sampled tokens, where a trainer needs both."""


@dataclass(frozen=True)
class Sample:
    """A completion with its model calls, `farm.calls(completion)`."""

    completion: Completion
    """The completion."""
    trajectories: tuple[Trajectory, ...] = ()
    """Its model calls; branches are trajectories of their own."""
    reward_key: str | None = None
    """The number of `rewards` that is the reward, in place of `reward`."""

    @property
    def verdict(self) -> float | None:
        """The reward; `None` if a trainer may not learn from the sample."""
        if not self.completion.usable:
            return None
        if self.reward_key is None:
            return self.completion.reward
        found = self.completion.rewards.get(self.reward_key)
        return None if found is None else float(found)

    def main(self) -> Sample:
        """Return the sample with only the trajectory that has most sampled tokens."""
        longest = max(self.trajectories, key=lambda one: sum(one.mask), default=None)
        return replace(self, trajectories=() if longest is None else (longest,))


@dataclass(frozen=True)
class TokenRow:
    """Tokens of a trajectory."""

    prompt_ids: list[int]
    """Tokens before the first sampled one."""
    response_ids: list[int]
    """The other tokens: those that the model sampled, and what it got between them."""
    mask: list[int]
    """For each token of the response: 1 if it was sampled, and is in no earlier row."""
    logprobs: list[float] | None
    """For each token of the response, 0.0 unless it was sampled; `None` if one is not known."""


def token_rows(trajectories: Iterable[Trajectory]) -> list[TokenRow]:
    """Return a row for each trajectory with token ids of which the model sampled some.

    A call that several branches continue is in all of their rows, and its mask is 1 in the first
    one only: no sampled token counts twice.
    """
    rows: list[TokenRow] = []
    earlier: list[Trajectory] = []
    for trajectory in trajectories:
        if 1 not in trajectory.mask:
            continue
        begin = trajectory.mask.index(1)
        known = max((_shared_tokens(trajectory, other) for other in earlier), default=0)
        earlier.append(trajectory)
        mask = [0 if at < known else one for at, one in enumerate(trajectory.mask)]
        rows.append(
            TokenRow(
                list(trajectory.ids[:begin]),
                list(trajectory.ids[begin:]),
                mask[begin:],
                _logprobs(trajectory, begin),
            )
        )
    return rows


def sampled_runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return where the runs of 1 begin and end."""
    runs, at = [], 0
    for value, ones in groupby(mask):
        end = at + len(list(ones))
        if value == 1:
            runs.append((at, end))
        at = end
    return runs


def neutral_reward(samples: Iterable[Sample], missing_reward: float | None) -> float:
    """Return the reward of masked samples where a record needs a number.

    It is the mean of the verdicts of the group, so that it does not move the group's baseline.

    Raises:
        MissingVerdictError: There is no verdict and no other reward.
    """
    if missing_reward is not None:
        return missing_reward
    verdicts = [sample.verdict for sample in samples]
    known = [verdict for verdict in verdicts if verdict is not None]
    if not known:
        raise MissingVerdictError(
            "cannot convert the group: no sample has a verdict; drop the group, or pass "
            "`missing_reward`"
        )
    return sum(known) / len(known)


def by_group(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return samples by their groups."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.completion.group, []).append(sample)
    return groups


def single_row(sample: Sample) -> TokenRow | None:
    """Return the only row of a sample; `None` without sampled tokens.

    Raises:
        ValueError: It has several trajectories.
    """
    rows = token_rows(sample.trajectories)
    if len(rows) > 1:
        completion = sample.completion
        raise ValueError(
            f"cannot convert sample {completion.index} of {completion.group} to one row: it has "
            f"{len(rows)} trajectories; pass `sample.main()` for the longest one"
        )
    return rows[0] if rows else None


def _shared_tokens(trajectory: Trajectory, other: Trajectory) -> int:
    """Return the tokens up to the end of the last call that both trajectories have."""
    shared = _common(trajectory.calls, other.calls)
    same = _common(trajectory.ids, other.ids)
    runs = sampled_runs(trajectory.mask[:same])[:shared]
    return runs[-1][1] if runs else 0


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(first), len(second)))


def _logprobs(trajectory: Trajectory, begin: int) -> list[float] | None:
    found: list[float] = []
    pairs = zip(trajectory.mask[begin:], trajectory.logprobs[begin:], strict=False)
    for sampled, logprob in pairs:
        if sampled and logprob is None:
            return None
        found.append(logprob if sampled and logprob is not None else 0.0)
    return found if len(found) == len(trajectory.ids) - begin else None
