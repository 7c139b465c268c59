"""An environment server of verifiers (verifiers.v1.serve), whose rollouts are samples of a farm.

It needs `pyzmq` and `msgpack`, which verifiers installs. Trainers use it as any other server:
`EnvClient(address)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from .._async_farm import AsyncFarm
from ..convert import Sample, verifiers
from ..errors import ApiError, NotFoundError, RolloutError
from ..farm_models import Completion, InlineTask, ModelEndpoint

_LOG = logging.getLogger(__name__)

# Sent once, when a trace first appears.
_HEADER = ("version", "id", "verifiers", "task")
_LISTS = ("nodes", "calls", "errors")


def task_name(task_data: Mapping[str, Any]) -> str | InlineTask:
    """Return the task of a farm for the data of a task: its `name`, or its `id`.

    Raises:
        ValueError: It has neither.
    """
    found = task_data.get("name") or task_data.get("id")
    if not isinstance(found, str):
        raise ValueError("cannot find the task: its data has no `name` and no `id`")
    return found


class EnvServer:
    """Serves rollouts of verifiers clients by samples of a farm, each a group of one.

    The farm's consumer belongs to the server: it acknowledges the completions of rollouts that
    nobody waits for any more.
    """

    def __init__(
        self,
        farm: AsyncFarm,
        address: str = "tcp://127.0.0.1:5000",
        *,
        consumer: str | None = None,
        task_of: Callable[[Mapping[str, Any]], str | InlineTask] = task_name,
        policy_version: Callable[[], int] = lambda: 0,
        env_id: str = "rollout",
        reward_key: str | None = None,
    ) -> None:
        """Bind the server's address.

        Args:
            farm: The farm.
            address: Address of ZeroMQ. With the port 0 the system chooses one: see `address`.
            consumer: Reader of completions; default the first one of the farm.
            task_of: The task for the data of a verifiers task.
            policy_version: The version of the policy, at each rollout.
            env_id: Id of the environment in records.
            reward_key: The number of `rewards` that is the reward, in place of `reward`.

        Raises:
            ImportError: `pyzmq` or `msgpack` is not installed.
        """
        zmq: Any = importlib.import_module("zmq")
        sockets: Any = importlib.import_module("zmq.asyncio")
        self._msgpack: Any = importlib.import_module("msgpack")
        self._farm = farm
        self._consumer = consumer
        self._task_of = task_of
        self._policy_version = policy_version
        self._env_id = env_id
        self._reward_key = reward_key
        self._waiting: dict[str, asyncio.Future[Completion]] = {}
        self._runs: dict[bytes, asyncio.Task[None]] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._context = sockets.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.setsockopt(option, 0)
        self._socket.bind(address)
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The address that clients connect to."""

    async def run(self) -> None:
        """Serve until cancelled, or until the farm has ended. Open rollouts are cancelled then.

        Raises:
            RolloutError: The completions of the farm cannot be read.
        """
        tasks = {asyncio.ensure_future(self._collect()), asyncio.ensure_future(self._receive())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            tasks.update(self._handling)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._socket.close()
            self._context.term()

    async def _collect(self) -> None:
        """Give completions to the rollouts that wait for them."""
        async with contextlib.aclosing(self._farm.completions(self._consumer)) as completions:
            async for completion in completions:
                waiting = self._waiting.pop(completion.group, None)
                if waiting is None or waiting.done():
                    _LOG.info("nobody waits for %s: acknowledged", completion.group)
                    await self._farm.ack(completion)
                else:
                    waiting.set_result(completion)

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            if len(frames) != 4:
                _LOG.warning("ignored a message of %d frames, expected 4", len(frames))
                continue
            client, request, method, payload = frames
            task = asyncio.ensure_future(self._handle(client, request, method, payload))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)
            if method == b"run":
                # Here, so that a cancellation that follows finds it.
                self._runs[request] = task
                task.add_done_callback(functools.partial(self._ended, request))

    def _ended(self, request: bytes, _task: asyncio.Task[None]) -> None:
        self._runs.pop(request, None)

    async def _handle(self, client: bytes, request: bytes, method: bytes, payload: bytes) -> None:
        reply: dict[str, Any]
        taken: Completion | None = None
        try:
            document = self._msgpack.unpackb(payload, raw=False)
            if method == b"health":
                reply = {"success": True, "error": None}
            elif method == b"cancel":
                found = self._runs.get(str(document["request_id"]).encode())
                if found is not None:
                    found.cancel()
                reply = {"success": True, "error": None, "cancelled": found is not None}
            elif method == b"run":
                taken, episode = await self._rollout(request, document)
                reply = await self._sent(client, request, episode)
            else:
                reply = _failure(f"unknown method {method!r}")
        except asyncio.CancelledError:
            reply = _failure("Cancelled: rollout aborted")
        except (RolloutError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("cannot serve a request: %s", error)
            reply = _failure(f"{type(error).__name__}: {error}")
        await self._send(client, request, b"reply", reply)
        if taken is not None:
            await self._farm.ack(taken)

    async def _rollout(
        self, request: bytes, document: Mapping[str, Any]
    ) -> tuple[Completion, dict[str, Any]]:
        """Submit a group of one sample, and wait for its completion."""
        task, group = self._task_of(document["task_data"]), f"vf-{request.decode()}"
        waiting: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[group] = waiting
        try:
            await self._farm.submit(
                task,
                1,
                group=group,
                policy_version=self._policy_version(),
                model=ModelEndpoint(document["model"], document["client"].get("base_url")),
                sampling=_given(document["sampling"]),
                consumer=self._consumer,
            )
            completion = await waiting
            return completion, await self._episode(completion, document)
        except BaseException as error:
            # First, so that a completion that comes now is not given to nobody.
            self._waiting.pop(group, None)
            if waiting.done() and not waiting.cancelled():
                await self._farm.ack(waiting.result())
            elif not isinstance(error, ApiError):
                await self._farm.cancel(group)
            raise

    async def _episode(self, completion: Completion, document: Mapping[str, Any]) -> dict[str, Any]:
        try:
            trajectories = await self._farm.calls(completion)
        except NotFoundError:
            # Its job has no gateway, or no execution decided it.
            trajectories = ()
        return verifiers.episode(
            Sample(completion, trajectories, self._reward_key),
            document["task_data"],
            env_id=self._env_id,
            model=document["model"],
        )

    async def _sent(self, client: bytes, request: bytes, episode: dict[str, Any]) -> dict[str, Any]:
        """Send the traces of an episode, and return the reply that ends it."""
        traces = episode.pop("traces")
        for trace in traces:
            rest = {name: trace[name] for name in trace if name not in (*_HEADER, *_LISTS)}
            delta = {
                "trace": trace["id"],
                "open": {name: trace[name] for name in _HEADER},
                **{name: trace[name] for name in _LISTS},
                "set": rest,
            }
            await self._send(client, request, b"delta", delta)
        counts = [
            {"id": trace["id"], "nodes": len(trace["nodes"]), "calls": len(trace["calls"])}
            for trace in traces
        ]
        return {"success": True, "error": None, "head": episode, "traces": counts}

    async def _send(self, client: bytes, request: bytes, kind: bytes, document: Any) -> None:
        data = self._msgpack.packb(document, use_bin_type=True)
        await self._socket.send_multipart([client, request, kind, data])


def _failure(message: str) -> dict[str, Any]:
    return {"success": False, "error": message}


def _given(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sampling.items() if value is not None}
