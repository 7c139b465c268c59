"""A real server: `rollout serve` in a directory of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[3]

DEADLINE_SEC = 240.0
"""Longest time of anything on a busy machine."""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Poll until something holds."""
    deadline = time.monotonic() + DEADLINE_SEC
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


class Daemon:
    """A server that can be killed and started again at the same address."""

    def __init__(self, program: str, directory: Path, *options: str) -> None:
        self.directory = directory
        self.tasks = directory / "tasks"
        fixture = REPOSITORY / "tests" / "fixtures" / "tasks" / "slow" / "second"
        shutil.copytree(fixture, self.tasks / "second")
        self._program = program
        self._options = options
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
        for name in ("ROLLOUT_TEST_MARK", "TMPDIR"):
            if name in os.environ:
                self._environment[name] = os.environ[name]
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts: list[threading.Thread] = []
        self._address = "127.0.0.1:0"
        self.start()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://{self._address}"

    @property
    def token(self) -> str:
        """The token that it made."""
        return (self.directory / "state" / "token").read_text().strip()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._starts += 1
        output = self.directory / f"out{self._starts}"
        arguments = ["serve", "--dir", "state", "--listen", self._address]
        arguments += ["--allow-path", str(self.tasks), "--allow-provider", "process"]
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
            self._process = subprocess.Popen(
                [self._program, *arguments, *self._options],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        prefix = "listening on http://"

        def listens() -> bool:
            assert self._process is not None
            errors = output.with_suffix(".err").read_text()
            assert self._process.poll() is None, f"the server has ended:\n{errors}"
            return output.read_text().startswith(prefix) and output.read_text().endswith("\n")

        try:
            wait_until(listens, "the server listens")
        except BaseException:
            # Nobody else knows it yet.
            self.kill()
            raise
        self._address = output.read_text().splitlines()[0].removeprefix(prefix)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, and the sandboxes of its trials."""
        for thread in self._restarts:
            thread.join()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(DEADLINE_SEC)

    def restart_meanwhile(self) -> threading.Thread:
        """Kill it, and start it again in a thread, so that a client meets a dead server."""
        self.kill()
        thread = threading.Thread(target=self.start)
        self._restarts.append(thread)
        thread.start()
        return thread

    def recorded_events(self, run: str) -> list[dict[str, Any]]:
        """Return the events of a run as the command line prints them."""
        printed = subprocess.run(
            [self._program, "events", f"state/jobs/{run}", "--json"],
            cwd=self.directory,
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=DEADLINE_SEC,
        )
        return [json.loads(line) for line in printed.stdout.splitlines()]

    def job(self, execute: str | None = None, **settings: Any) -> dict[str, Any]:
        """Return a job with the task of this server, and an agent that runs a script."""
        agent = {"name": "printer", "execute": execute} if execute else {"name": "oracle"}
        return {
            "name": "job",
            "environment": {"type": "process"},
            "agents": [agent],
            "datasets": [{"path": str(self.tasks)}],
            **settings,
        }
