"""Farms of a real server."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from daemon import Daemon
from model_server import AGENT, ModelServer
from rollout_client import BusyError, Client, ConflictError, Farm, NotFoundError, errors
from rollout_client.convert import Sample, skyrl

TASK = "tasks/second"


def opened(client: Client, daemon: Daemon, execute: str = "true", **options: Any) -> Farm:
    settings = options.pop("settings", {})
    return client.farms.create("policy", daemon.job(execute, **settings), **options)


@pytest.fixture
def farm(client: Client, shared: Daemon) -> Farm:
    return opened(client, shared)


def test_groups_come_whole_and_are_not_shown_after_their_acknowledgement(farm: Farm) -> None:
    submitted = [farm.submit(TASK, 2, group=name, metadata={"row": 1}) for name in ("a", "b")]
    assert [one.known for one in submitted] == [False, False]
    assert farm.submit(TASK, 2, group="a", metadata={"row": 1}).known
    farm.close()
    groups = list(farm.groups())
    assert {one.group for one in groups} == {"a", "b"}
    for one in groups:
        assert one.is_whole
        assert (one.end, one.rewards, one.metadata) == ("complete", (0.5, 0.5), {"row": 1})
        assert [completion.index for completion in one.completions] == [0, 1]
    assert farm.ack(groups[0]) == 2
    left = list(farm.completions())
    assert {completion.group for completion in left} == {groups[1].group}
    assert farm.record(left[0])["verdict"]["reward"] == 0.5
    assert farm.ack(*left) == 2
    assert list(farm.completions()) == []
    with pytest.raises(NotFoundError):
        farm.record(left[0])


def test_farm_is_created_once_found_and_deleted(client: Client, shared: Daemon) -> None:
    key, name = uuid.uuid4().hex, f"farm-{uuid.uuid4().hex[:8]}"
    created = [
        client.farms.create(name, shared.job("true"), idempotency_key=key, priority=3)
        for _ in range(2)
    ]
    assert created[0].id == created[1].id
    with pytest.raises(errors.IdempotencyConflictError):
        client.farms.create(name, shared.job("false"), idempotency_key=key)
    assert [one.id for one in client.farms.list(name=name, page_size=1)] == [created[0].id]
    again = client.farms.open(created[0].id)
    again.submit(TASK, 1)
    info = again.info()
    assert (info.name, info.priority, info.is_final) == (name, 3, False)
    again.delete()
    with pytest.raises(NotFoundError):
        client.farms.open(again.id)
    assert list(client.farms.list(name=name)) == []


def test_invalid_groups_and_conflicts_are_errors(farm: Farm) -> None:
    with pytest.raises(errors.InvalidGroupError, match="none"):
        farm.submit("none", 1)
    farm.submit(TASK, 1, group="g")
    with pytest.raises(ConflictError):
        farm.submit(TASK, 2, group="g")
    cancelled = farm.cancel("never-seen")
    assert cancelled.unknown
    with pytest.raises(ConflictError):
        farm.submit(TASK, 1, group="never-seen")
    with pytest.raises(NotFoundError):
        farm.group("other")


def test_full_farm_admits_a_group_when_it_has_room(client: Client, shared: Daemon) -> None:
    farm = opened(client, shared, limits={"open_groups": 1}, settings={"n_concurrent_trials": 1})
    farm.pause()
    first = farm.submit(TASK, 1)
    with pytest.raises(BusyError) as caught:
        farm.submit(TASK, 1, max_wait_sec=1.0)
    problem = caught.value.problem
    assert (problem.limit, problem.depth, problem.max) == ("open_groups", 1, 1)
    farm.resume()
    assert not farm.submit(TASK, 1).known
    assert farm.group(first).end == "complete"


def test_cancelled_group_ends_with_its_completions(client: Client, shared: Daemon) -> None:
    farm = opened(client, shared, "sleep 600")
    farm.submit(TASK, 2, group="g")
    assert farm.cancel("g").samples == 2
    (group,) = _first_groups(farm, 1)
    assert (group.end, group.rewards, group.usable) == ("cancelled", (None, None), ())
    assert {one.reason for one in group.completions} == {"requested"}
    farm.delete()


def _first_groups(farm: Farm, count: int) -> list[Any]:
    groups = farm.groups(wait_sec=5)
    found = [next(groups) for _ in range(count)]
    groups.close()
    return found


def test_samples_wait_for_the_end_of_a_weight_sync(farm: Farm) -> None:
    with farm.weight_sync(7) as paused:
        assert paused.paused
        farm.submit(TASK, 1, policy_version=6)
        assert farm.info().state == "paused"
        assert farm.page(wait_sec=1).completions == ()
    (group,) = _first_groups(farm, 1)
    assert group.completions[0].policy.ended == 7
    farm.set_policy_version(8)
    status = farm.info().status
    assert status is not None
    assert status.policy_version == 8


def test_failed_weight_sync_leaves_the_farm_paused(farm: Farm) -> None:
    with pytest.raises(RuntimeError, match="no weights"), farm.weight_sync(7):
        raise RuntimeError("no weights")
    assert farm.info().state == "paused"
    farm.resume()
    assert farm.info().state == "running"


def test_consumers_have_completions_of_their_own(client: Client, shared: Daemon) -> None:
    farm = opened(client, shared, consumers=("train", "eval"))
    farm.submit(TASK, 1, consumer="eval", group="e")
    farm.submit(TASK, 1, group="t")
    farm.close()
    # An iterator waits this long for more completions while a group of another consumer is open.
    assert [one.group for one in farm.completions("eval", wait_sec=1)] == ["e"]
    (group,) = farm.groups()
    assert group.group == "t"
    assert farm.ack(group, *farm.completions("eval")) == 2


def test_iterators_and_submissions_outlive_a_kill_of_the_server(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    daemon = start()
    client = connect(daemon.url, daemon.token)
    farm = opened(client, daemon, "sleep 0.5")
    for number in range(4):
        farm.submit(TASK, 2, group=f"g{number}")
    seen = []
    completions = farm.completions(wait_sec=5)
    seen.append(next(completions))
    restart = daemon.restart_meanwhile()
    farm.submit(TASK, 2, group="late")
    for completion in completions:
        seen.append(completion)
        if len(seen) == 10:
            farm.ack(*seen)
            farm.close()
    restart.join()
    assert [one.cursor for one in seen] == list(range(1, 11))
    assert {one.group for one in seen} == {"g0", "g1", "g2", "g3", "late"}


def test_new_iterator_begins_with_the_oldest_one_without_acknowledgement(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    daemon = start()
    client = connect(daemon.url, daemon.token)
    farm = opened(client, daemon)
    farm.submit(TASK, 3)
    completions = farm.completions(wait_sec=5)
    first, second = next(completions), next(completions)
    farm.ack(second)
    completions.close()
    daemon.restart_meanwhile().join()
    again = connect(daemon.url, daemon.token).farms.open(farm.id)
    again.close()
    assert [one.cursor for one in again.completions()] == [first.cursor, 3]


def test_calls_of_a_sample_become_a_row_of_a_trainer(
    start: Callable[..., Daemon], connect: Callable[..., Client]
) -> None:
    with ModelServer() as model:
        daemon = start("--allow-model-server", model.origin)
        client = connect(daemon.url, daemon.token)
        farm = opened(client, daemon, AGENT, settings={"gateway": model.gateway()})
        farm.submit(TASK, 2, policy_version=3)
        (group,) = _first_groups(farm, 1)
        samples = [Sample(one, farm.calls(one)) for one in group.completions]
        output = skyrl.generator_output(samples)
        say, yes = [1, *b"say", 2], [1, *b"yes", 2]
        assert output["prompt_token_ids"] == [[*say, 1]] * 2
        assert output["response_ids"] == [[*yes[1:], *say, *yes]] * 2
        assert output["loss_masks"] == [[1] * 4 + [0] * 6 + [1] * 4] * 2
        assert output["rollout_logprobs"] is not None
        assert output["rollout_logprobs"][0][:4] == [-one / 1000 for one in yes[1:]]
        assert output["rewards"] == [0.5, 0.5]


def test_waiting_iterator_ends_when_the_farm_is_closed(
    farm: Farm, client: Client, shared: Daemon
) -> None:
    with Client(shared.url, shared.token) as other:
        closing = threading.Thread(target=lambda: other.farms.open(farm.id).close())
        completions = farm.completions(wait_sec=1)
        farm.submit(TASK, 1)
        farm.ack(next(completions))
        closing.start()
        assert list(completions) == []
        closing.join()
