"""A trainer that a test kills: it submits groups, and notes what it reads before it acknowledges it.

    trainer.py URL DIRECTORY GROUPS N SEED

The directory has the farm's job document, `farm.json`. The trainer appends one line for each step to
`trainer.jsonl`; the last line of a killed one may be cut. `read.txt` has the newest cursor of all
trainers. It ends with the farm.
"""

import json
import sys
from pathlib import Path
from random import Random

from rollout_client import Client, RetryPolicy

LIMIT = 48
"""Completions of one page."""

BURST = 5
"""Groups that are submitted between two readings."""

SYNC_SHARE = 0.05
"""Share of readings that a weight sync follows."""

JOURNAL_BYTES = 65536
"""The journal is compacted after this growth: the smallest that a farm takes."""

MAX_WAIT_SEC = 300.0
"""Longest time without a server."""


class Log:
    """A file with a line for each step. A line that was written outlives the process."""

    def __init__(self, path: Path) -> None:
        text = path.read_bytes() if path.exists() else b""
        self._file = path.open("a")
        if not text.endswith(b"\n") and text:
            self._file.write("\n")

    def add(self, **step: object) -> None:
        self._file.write(json.dumps(step) + "\n")
        self._file.flush()


def replace(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def newest_read(directory: Path) -> int:
    """The newest cursor of all trainers: what a former one acknowledged is not shown again."""
    path = directory / "read.txt"
    return int(path.read_text()) if path.exists() else 0


def main() -> None:
    url, name, groups, n, seed = sys.argv[1:]
    directory, random = Path(name), Random(int(seed))
    document = json.loads((directory / "farm.json").read_text())
    log = Log(directory / "trainer.jsonl")
    with Client(url, retry=RetryPolicy(total_sec=MAX_WAIT_SEC, max_delay_sec=1.0)) as client:
        limits = {"journal_bytes": JOURNAL_BYTES}
        farm = client.farms.create("policy", document, limits=limits, idempotency_key="farm")
        log.add(farm=farm.id)
        # A former process may have ended in a weight sync.
        farm.resume()
        status = farm.info().status
        version = status.policy_version if status else 0
        submitted, after, newest = 0, 0, newest_read(directory)
        while True:
            for number in range(submitted, min(submitted + BURST, int(groups))):
                # A former process may have submitted it: it is admitted once.
                farm.submit("tasks/t", int(n), group=f"g-{number}", max_refills=4 * int(n))
                submitted = number + 1
            page = farm.page(after=after, limit=LIMIT, wait_sec=1)
            found = [completion.raw for completion in page.completions]
            log.add(after=after, completions=found)
            newest = max([newest, *(one.cursor for one in page.completions)])
            replace(directory / "read.txt", str(newest))
            taken = [one.cursor for one in page.completions if random.random() < 0.5]
            if taken:
                log.add(acknowledging=taken)
                farm.ack(*taken)
                log.add(acknowledged=taken)
            after = random.choice([0, page.next_after])
            if random.random() < SYNC_SHARE:
                version += 1
                with farm.weight_sync(version):
                    log.add(paused=version)
                log.add(version=version)
            if not found and submitted == int(groups):
                status = farm.info().status
                if status and status.open_groups == 0 and status.unacknowledged == 0:
                    break
                after = 0
        farm.close()
        log.add(closed=farm.id)


main()
