"""The environment server, as the client of verifiers itself sees it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from daemon import DEADLINE_SEC, Daemon
from model_server import AGENT, ModelServer
from package import required
from rollout_client import AsyncClient, AsyncFarm, FarmStatus
from rollout_client.adapters.verifiers import EnvServer

verifiers_client = required("verifiers", "verifiers.v1.serve.client")
configs = required("verifiers", "verifiers.v1.configs.client")
types = required("verifiers", "verifiers.v1.types")

TASK_DATA = {"idx": 0, "name": "tasks/second", "prompt": "say", "answer": 42}
REPLY = [*b"yes", 2]


@contextlib.asynccontextmanager
async def served(daemon: Daemon, job: dict[str, Any]) -> AsyncIterator[tuple[Any, AsyncFarm]]:
    """Serve a farm, and connect the client of verifiers to it."""
    async with AsyncClient(daemon.url) as client:
        farm = await client.farms.create("policy", job)
        server = EnvServer(farm, "tcp://127.0.0.1:0")
        serving = asyncio.ensure_future(server.run())
        env = verifiers_client.EnvClient(server.address)
        try:
            await env.wait_for_server_startup(timeout=60, interval=0.2)
            yield env, farm
        finally:
            await env.close()
            assert not serving.done(), "the server has ended"
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def until(farm: AsyncFarm, holds: Callable[[FarmStatus], bool]) -> None:
    """Poll the state of a farm until something holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_SEC
    while True:
        status = (await farm.info()).status
        if status is not None and holds(status):
            return
        assert loop.time() < deadline, f"not in time: {status}"
        await asyncio.sleep(0.05)


async def rollout(env: Any, task_data: dict[str, Any], **sampling: Any) -> Any:
    config = configs.EvalClientConfig(base_url="http://policy/v1", api_key_var="NONE")
    return await env.run(config, "m", types.SamplingConfig(**sampling), task_data)


def test_rollouts_are_episodes_with_tokens_and_reward(start: Callable[..., Daemon]) -> None:
    async def go(daemon: Daemon, model: ModelServer) -> None:
        async with served(daemon, daemon.job(AGENT, gateway=model.gateway())) as (env, farm):
            episodes = await asyncio.gather(
                *(rollout(env, TASK_DATA, temperature=0.5) for _ in range(3))
            )
            for episode in episodes:
                assert episode.ok
                assert episode.errors == []
                assert episode.task.data.model_extra == {"answer": 42}
                (trace,) = episode.traces
                assert trace.reward == 0.5
                assert (trace.stop_condition, trace.is_completed) == ("agent_completed", True)
                (branch,) = trace.branches
                say = [1, *b"say", 2, 1]
                assert branch.token_ids == [*say, *REPLY, *say, *REPLY]
                assert branch.sampled_mask == [False] * 6 + [True] * 4 + [False] * 6 + [True] * 4
                assert branch.logprobs[6:10] == [-one / 1000 for one in REPLY]
                assert branch.logprobs[10:16] == [0.0] * 6
            # The server acknowledges a sample after its reply.
            await until(farm, lambda status: status.unacknowledged == 0)

    with ModelServer() as model:
        asyncio.run(go(start("--allow-model-server", model.origin), model))


def test_rollout_without_a_verdict_is_a_failed_episode(start: Callable[..., Daemon]) -> None:
    async def go(daemon: Daemon) -> None:
        async with served(daemon, daemon.job("exit 3")) as (env, _):
            episode = await rollout(env, TASK_DATA)
            assert not episode.ok
            (trace,) = episode.traces
            assert trace.rewards == {"reward": None}
            assert trace.errors[0].type == "HarnessError"
            assert trace.stop_condition == "harness_error"
            assert trace.branches == []

    asyncio.run(go(start()))


def test_unknown_task_is_an_error_of_the_client(start: Callable[..., Daemon]) -> None:
    async def go(daemon: Daemon) -> None:
        async with served(daemon, daemon.job("true")) as (env, _):
            for data in ({"name": "none"}, {"idx": 1}):
                with pytest.raises(RuntimeError, match="cannot"):
                    await rollout(env, data)
            assert (await rollout(env, TASK_DATA)).ok

    asyncio.run(go(start()))


class CalledServer(ModelServer):
    """Notes that an agent runs: it has made a call."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()

    def sample(self, messages: list[dict[str, Any]]) -> tuple[str, list[int], list[float]]:
        self.called.set()
        return super().sample(messages)


def test_cancelled_rollout_ends_its_group(start: Callable[..., Daemon]) -> None:
    async def go(daemon: Daemon, model: CalledServer) -> None:
        job = daemon.job(f"{AGENT}\nsleep 20", gateway=model.gateway())
        async with served(daemon, job) as (env, farm):
            running = asyncio.ensure_future(rollout(env, TASK_DATA))
            assert await asyncio.to_thread(model.called.wait, DEADLINE_SEC)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await until(farm, lambda status: status.totals.cancelled == 1)
            # Nobody waits for its completion: the server takes it.
            await until(farm, lambda status: status.unacknowledged == 0)

    with CalledServer() as model:
        asyncio.run(go(start("--allow-model-server", model.origin), model))
