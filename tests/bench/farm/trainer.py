"""A trainer that measures: it submits groups, reads their completions and acknowledges them.

usage: trainer.py FARM held|steady GROUPS SAMPLES WINDOW

`held` submits every group before it reads, and acknowledges at the end. `steady` has at most WINDOW
groups open and acknowledges as it reads. It prints one line of JSON for each stage.
"""

import json
import sys
import threading
import time

from rollout_client import Client

PAGE = 1000


def percentiles(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    at = lambda part: round(values[round((len(values) - 1) * part)] * 1000, 3)
    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


def say(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


def submit(farm, groups: int, samples: int, places: threading.Semaphore) -> list[float]:
    times = []
    for number in range(groups):
        places.acquire()
        began = time.perf_counter()
        farm.submit("tasks/t", n=samples, group=f"{farm.id}-{number}")
        times.append(time.perf_counter() - began)
    return times


def read(farm, total: int, places: threading.Semaphore, is_steady: bool) -> dict[str, object]:
    delays, taken, first = [], [], None
    after = 0
    while len(delays) < total:
        page = farm.page(after=after, limit=PAGE, wait_sec=30)
        now = time.time()
        if page.completions and first is None:
            first = time.perf_counter()
        for completion in page.completions:
            delays.append(now - completion.at.timestamp())
            if completion.group_end is not None:
                places.release()
        after = page.next_after
        if is_steady and page.completions:
            farm.ack(*page.completions)
        else:
            taken.extend(page.completions)
    over = time.perf_counter()
    began = time.perf_counter()
    if taken:
        farm.ack(*taken)
    return {
        "samples": len(delays),
        "read_seconds": over - first,
        "ack_seconds": time.perf_counter() - began,
        "delay": percentiles(delays),
    }


def main() -> None:
    farm_id, mode, groups, samples, window = sys.argv[1:]
    groups, samples, is_steady = int(groups), int(samples), mode == "steady"
    places = threading.Semaphore(int(window) if is_steady else groups)
    with Client() as client, Client() as other:
        farm = client.farms.open(farm_id)
        began = time.perf_counter()
        if is_steady:
            of_reader = other.farms.open(farm_id)
            sender = threading.Thread(target=submit, args=(farm, groups, samples, places))
            sender.start()
            figures = read(of_reader, groups * samples, places, True)
            sender.join()
            say(**figures, seconds=time.perf_counter() - began)
            return
        times = submit(farm, groups, samples, places)
        say(seconds=time.perf_counter() - began, submit=percentiles(times))
        say(**read(farm, groups * samples, places, False))


main()
