"""Runs Harbor's own oracle agent on every task of a dataset on Docker.

    oracle.py TASKS_DIR WORK_DIR RESULT.json

One job per task: Harbor aborts the whole job when it refuses one of its tasks.
"""

import asyncio
import json
import sys
from pathlib import Path

from harbor.job import Job
from harbor.models.environment_type import EnvironmentType
from harbor.models.job.config import JobConfig
from harbor.models.trial.config import EnvironmentConfig, TaskConfig

AT_ONCE = 2


def cause(error: BaseException) -> str:
    """The first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def attempt(task: Path, work: Path) -> dict:
    config = JobConfig(
        job_name=task.name,
        jobs_dir=work,
        n_concurrent_trials=1,
        quiet=True,
        environment=EnvironmentConfig(type=EnvironmentType.DOCKER),
        tasks=[TaskConfig(path=task, source=task.parent.name)],
    )
    try:
        job = await Job.create(config)
        await job.run()
    except Exception as error:  # A task's definition may make Harbor raise any exception.
        return {"refused": cause(error)}
    results = [json.loads(file.read_text()) for file in (work / task.name).glob("*/result.json")]
    if len(results) != 1:
        return {"refused": f"{len(results)} results"}
    verified = results[0]["verifier_result"] or {}
    failed = results[0]["exception_info"] or {}
    return {"rewards": verified.get("rewards"), "exception": failed.get("exception_type")}


async def main(tasks: Path, work: Path, out: Path) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(task: Path) -> tuple[str, dict]:
        async with turns:
            got = await attempt(task, work)
            print(task.name, got, flush=True)
            return task.name, got

    found = sorted(path for path in tasks.iterdir() if (path / "task.toml").exists())
    results = dict(await asyncio.gather(*(one(task) for task in found)))
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*(Path(argument) for argument in sys.argv[1:4])))
