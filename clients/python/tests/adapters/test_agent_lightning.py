"""The REST API, as the rollout manager of Agent Lightning's trainer itself sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from daemon import DEADLINE_SEC, Daemon, wait_until
from model_server import AGENT, ModelServer
from package import required
from rollout_client import Client, Farm
from rollout_client.adapters.agent_lightning import RolloutServer

manager_module = required("agent_lightning", "agentlightning.verl.agl_rollout_manager")
client_module = required("agent_lightning", "agentlightning.client")

KEY = "a key"


def task_of(given: dict[str, Any]) -> str:
    name: str = given["task"]
    return name


@contextlib.contextmanager
def opened(daemon: Daemon, job: dict[str, Any]) -> Iterator[Farm]:
    with Client(daemon.url) as client:
        yield client.farms.create("policy", job)


def manager(server: RolloutServer, rollouts: int = 2) -> Any:
    return manager_module.AglRolloutManager(
        agl_base_url=server.url,
        agl_key=KEY,
        model="m",
        step=1,
        train_rollout_n=rollouts,
        rollout_timeout_seconds=DEADLINE_SEC,
        poll_interval_seconds=0.05,
    )


def test_trainer_gets_triplets_and_rewards(start: Callable[..., Daemon]) -> None:
    with ModelServer() as model:
        daemon = start("--allow-model-server", model.origin)
        job = daemon.job(AGENT, gateway=model.gateway())
        with opened(daemon, job) as farm, RolloutServer(farm, task_of, key=KEY) as server:
            trainer = manager(server)
            trainer.register_model([f"{model.origin}/v1"])
            data = {"task": ["tasks/second"] * 2, "data_id": ["a", "b"]}
            completed = trainer.enqueue_and_wait_until_completed(data, is_train=True)
            assert len(completed) == 4
            say, yes = [1, *b"say", 2, 1], [*b"yes", 2]
            for one in completed:
                assert (one.final_reward, one.rollout_state) == (0.5, "succeeded")
                first, second = one.triplets
                assert first.prompt == {"token_ids": say}
                assert first.response["token_ids"] == yes
                assert first.response["log_probs"] == [-token / 1000 for token in yes]
                assert second.prompt == {"token_ids": [*say, *yes, *say]}
                assert second.reward == 0.5
            wait_until(lambda: unacknowledged(farm) == 0, "deleted rollouts are acknowledged")
            assert trainer.delete_model() == {"status": "ok"}


def unacknowledged(farm: Farm) -> int:
    status = farm.info().status
    assert status is not None
    return status.unacknowledged


def test_failed_rollout_has_no_reward(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with opened(daemon, daemon.job("exit 3")) as farm, RolloutServer(farm, task_of, key=KEY) as api:
        data = {"task": ["tasks/second"]}
        (one,) = manager(api).enqueue_and_wait_until_completed(data, is_train=False)
        assert (one.rollout_state, one.final_reward, one.triplets) == ("failed", None, [])
        assert one.error_message


def test_rollouts_are_known_to_the_next_server(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with opened(daemon, daemon.job("true")) as farm:
        request = {"rollout_id": "r", "input": {"task": "tasks/second", "data_id": "d"}}
        with RolloutServer(farm, task_of, key=KEY) as first, client(first) as http:
            for _ in range(2):
                (created,) = http.post_with_retry("/api/rollouts", json=[request]).json()
                assert created["rollout_id"] == "r"
        with RolloutServer(farm, task_of, key=KEY) as second, client(second) as http:

            def terminal() -> list[Any]:
                items: list[Any] = http.get("/api/rollouts/terminal").json()["items"]
                return items

            wait_until(lambda: len(terminal()) == 1, "the rollout ends")
            (item,) = terminal()
            assert (item["rollout_id"], item["state"], item["data_id"]) == ("r", "succeeded", "d")
            after = http.get("/api/rollouts/terminal", params={"after": 1}).json()
            assert (after["items"], after["next_after"]) == ([], 1)
            listed = http.get("/api/rollouts", params={"state_in": "succeeded"}).json()
            assert [one["rollout_id"] for one in listed] == ["r"]
            assert http.delete("/api/rollouts/r").status_code == 204
            assert http.get("/api/rollouts/r").status_code == 404
            assert http.post("/proxy/pause", json={"reason": "weights"}).json()["paused"] is True
            assert http.post("/proxy/resume").json()["paused"] is False
        assert unacknowledged(farm) == 0


def client(server: RolloutServer) -> Any:
    return client_module.AgentLightningSyncClient(key=KEY, base_url=server.url)


def test_wrong_keys_and_requests_are_refused(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with opened(daemon, daemon.job("true")) as farm, RolloutServer(farm, task_of, key=KEY) as api:
        assert httpx.get(f"{api.url}/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{api.url}/api/rollouts/r").status_code == 401
        with client(api) as http:
            assert http.get("/api/rollouts/none").status_code == 404
            assert http.get("/api/other").status_code == 404
            assert http.post("/api/rollouts", json=[{"input": {}}]).status_code == 422
            with pytest.raises(httpx.HTTPStatusError):
                http.get("/api/rollouts/none").raise_for_status()
