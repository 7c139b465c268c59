"""Compares the rewards of Rollout's oracle agent and of Harbor's, task by task.

    compare.py formats.toml OURS.jsonl THEIRS.json

In the table, `harbor` is the reward expected of Harbor's oracle when it differs, or the reason why
the two cannot be compared.
"""

import json
import sys
import tomllib
from pathlib import Path


# Exceptions of Harbor that correspond to error types of Rollout, for tasks without a reward.
ALIKE = {
    "environment_start_failed": {"HealthcheckError"},
    "task_invalid": {"FileNotFoundError", "ValueError"},
    "verifier_timeout": {"VerifierTimeoutError"},
    "verifier_reward_missing": {"RewardFileNotFoundError"},
    "verifier_reward_invalid": {"VerifierOutputParseError", "RewardFileEmptyError"},
}


def near(ours: dict | None, theirs: dict | None) -> bool:
    if not ours or not theirs:
        return not ours and not theirs
    return ours.keys() == theirs.keys() and all(abs(ours[k] - theirs[k]) < 1e-9 for k in ours)


def rewards(row: dict) -> dict | None:
    if row["outcome"] != "completed":
        return None
    return row["rewards"] or {"reward": row["reward"]}


def judge(entry: dict, row: dict, theirs: dict) -> str:
    """`same`, the reason why they cannot be compared, or `DIFFERENT`."""
    ours = rewards(row)
    differs = entry.get("harbor")
    if isinstance(differs, str):
        return f"not compared: {differs}"
    if "refused" in theirs:
        return f"not compared: Harbor refuses it: {theirs['refused'].splitlines()[0]}"
    if differs is not None:
        expected = {"reward": float(differs)}
        return "as expected different" if near(expected, theirs["rewards"]) else "DIFFERENT"
    if not near(ours, theirs["rewards"]):
        return "DIFFERENT"
    if ours is None:
        errors = f"{row['error_type']} / {theirs['exception']}"
        alike = theirs["exception"] in ALIKE.get(row["error_type"], set())
        return f"{'same' if alike else 'DIFFERENT'}: {errors}"
    return "same"


def main(table: Path, ours: Path, theirs: Path) -> int:
    expected = tomllib.loads(table.read_text())["harbor"]
    rows = map(json.loads, ours.read_text().splitlines())
    mine = {row["task_name"]: row for row in rows}
    harbors = json.loads(theirs.read_text())
    counts: dict[str, int] = {}
    for task in sorted(mine.keys() | harbors.keys()):
        if task not in mine or task not in harbors:
            verdict = f"DIFFERENT: only {'ours' if task in mine else 'theirs'} has it"
        else:
            verdict = judge(expected.get(task, {}), mine[task], harbors[task])
        kind = verdict.split(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
        got = [rewards(mine[task]) if task in mine else None]
        got.append(harbors.get(task, {}).get("rewards"))
        print(f"{task:30} {verdict}   {got[0]} / {got[1]}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    return 1 if counts.get("DIFFERENT") else 0


if __name__ == "__main__":
    sys.exit(main(*(Path(argument) for argument in sys.argv[1:4])))
