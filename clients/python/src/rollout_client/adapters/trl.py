"""TRL: rollouts of `GRPOTrainer` and `AsyncGRPOTrainer` from a farm.

The gateway of the farm's job must record tokens (`capture: tokens`). The model server is the
trainer's: it has the weights that the trainer gave it.
"""

from __future__ import annotations

import importlib
import itertools
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
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


class FarmRolloutWorker:
    """A `rollout_worker` of `AsyncGRPOTrainer`: two threads that keep groups in flight.

    Groups are submitted until the farm is full, or `max_groups` are open. Samples without a verdict
    are dropped, and take no part in the baseline; a group that is left with less than two samples
    is dropped. Each trajectory is a sample of its own, with the advantage of its rollout.
    """

    def __init__(
        self,
        farm: Farm,
        prompts: Iterable[Any],
        task_of: TaskOf,
        *,
        num_generations: int,
        max_groups: int = 16,
        max_samples: int = 1024,
        consumer: str | None = None,
        model: ModelEndpoint | None = None,
        sampling: Mapping[str, Any] | None = None,
        reward_key: str | None = None,
    ) -> None:
        """Take a farm.

        Args:
            farm: The farm.
            prompts: The prompts, in their order; an endless iterator for several epochs.
            task_of: The task for a prompt.
            num_generations: Samples of a group.
            max_groups: Groups in flight.
            max_samples: Samples that wait for the trainer.
            consumer: Reader of completions; default the first one of the farm.
            model: The model that agents call.
            sampling: Sampling parameters.
            reward_key: The number of `rewards` that is the reward, in place of `reward`.
        """
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(max_samples)
        """Samples for the trainer."""
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        """Metrics for the trainer."""
        self._farm = farm
        self._prompts = iter(prompts)
        self._task_of = task_of
        self._n = num_generations
        self._consumer = consumer
        self._options: dict[str, Any] = {"model": model, "sampling": sampling, "consumer": consumer}
        self._reward_key = reward_key
        self._room = threading.Semaphore(max_groups)
        self._open: dict[str, Any] = {}
        self._group_ids = itertools.count()
        self._version = 0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._progress_at = time.monotonic()

    def start(self) -> None:
        """Begin to submit groups, and to read them."""
        for loop in (self._submit, self._read):
            thread = threading.Thread(target=self._guard, args=(loop,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Cancel the groups in flight, and end the threads."""
        self._stopping.set()
        self._room.release()
        for thread in self._threads:
            thread.join()
        for group in self._open:
            self._farm.cancel(group)

    def update_model_version(self, model_version: int) -> None:
        """Note the version of the policy of later groups."""
        self._version = model_version
        self._farm.set_policy_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if a thread has failed, or no group has ended for some time.

        Raises:
            RuntimeError: A thread has failed, or nothing came.
        """
        if self._failure is not None:
            raise RuntimeError("cannot go on with rollouts: a thread failed") from self._failure
        quiet = time.monotonic() - self._progress_at
        if quiet > stale_after_s:
            raise RuntimeError(f"cannot go on with rollouts: no group ended for {quiet:.0f} s")

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            # The trainer sees it in `check_health`.
            self._failure = error

    def _submit(self) -> None:
        for prompt in self._prompts:
            self._room.acquire()
            if self._stopping.is_set():
                return
            group = f"trl-{uuid.uuid4().hex}"
            self._open[group] = prompt
            task, version = self._task_of(prompt), self._version
            self._farm.submit(task, self._n, group=group, policy_version=version, **self._options)

    def _read(self) -> None:
        # Short waits, so that it ends soon after `stop`.
        after = 0
        begun: dict[str, list[Any]] = {}
        while not self._stopping.is_set():
            page = self._farm.page(self._consumer, after=after, limit=1000, wait_sec=1)
            after = page.next_after
            for completion in page.completions:
                group = begun.setdefault(completion.group, [])
                group.append(completion)
                if completion.group_end is None:
                    continue
                del begun[completion.group]
                found = sorted(group, key=lambda one: int(one.index))
                end = completion.group_end
                self._take(CompletedGroup(completion.group, len(found), end, tuple(found)))

    def _take(self, group: CompletedGroup) -> None:
        if group.group in self._open:
            prompt = self._open.pop(group.group)
            self._room.release()
            self._progress_at = time.monotonic()
            for sample in self._samples(group, prompt):
                self._put(sample)
        self._farm.ack(group)

    def _put(self, sample: Any) -> None:
        while not self._stopping.is_set():
            try:
                self.rollout_buffer.put(sample, timeout=1)
            except queue.Full:
                continue
            return

    def _samples(self, group: CompletedGroup, prompt: Any) -> Iterator[Any]:
        """Yield the samples of a group, with advantages."""
        if group.end != "complete":
            return
        samples = list(samples_of(self._farm, group, self._reward_key))
        judged = [(sample, sample.verdict) for sample in samples]
        known = [(sample, verdict) for sample, verdict in judged if verdict is not None]
        lost = len(judged) - len(known)
        self.metrics_queue.put({"rollout/without_verdict": (float(lost), float(len(judged)))})
        if len(known) < 2:
            return
        mean = sum(verdict for _, verdict in known) / len(known)
        spread = sum((verdict - mean) ** 2 for _, verdict in known) / (len(known) - 1)
        number = next(self._group_ids)
        for sample, verdict in known:
            advantage = (verdict - mean) / (spread**0.5 + 1e-4)
            for row in token_rows(sample.trajectories):
                if row.logprobs is not None:
                    version = sample.completion.policy.requested
                    metrics = {"reward": verdict}
                    yield _rollout_sample(row, prompt, advantage, version, number, metrics)


def _rollout_sample(
    row: TokenRow,
    prompt: Any,
    advantage: float,
    version: int,
    number: int,
    metrics: dict[str, float],
) -> Any:
    numpy: Any = importlib.import_module("numpy")
    module: Any = importlib.import_module("trl.experimental.async_grpo.async_rollout_worker")
    before = len(row.prompt_ids)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return module.RolloutSample(
        prompt=messages,
        completion=[{"role": "assistant", "content": ""}],
        input_ids=numpy.asarray(row.prompt_ids + row.response_ids, dtype=numpy.int64),
        completion_mask=numpy.asarray([0] * before + row.mask, dtype=numpy.int64),
        old_log_probs=numpy.asarray([0.0] * before + (row.logprobs or []), dtype=numpy.float32),
        advantage=advantage,
        model_version=version,
        group_id=number,
        metrics=metrics,
        enqueued_at=time.time(),
    )
