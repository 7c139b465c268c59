"""Compares two job directories in Harbor's layout, task by task: rewards, rewards of steps, artifacts.

    trials.py OURS THEIRS

OURS is one exported job; THEIRS has a job per task. A difference is printed with both sides.
"""

import hashlib
import json
import sys
from pathlib import Path


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def artifacts(trial: Path) -> dict[str, str]:
    """Digest of every collected file; the manifests of the tools differ."""
    found = {}
    for directory in [trial / "artifacts", *sorted(trial.glob("steps/*/artifacts"))]:
        for file in sorted(directory.rglob("*")):
            if file.is_file() and file.name != "manifest.json":
                found[str(file.relative_to(trial))] = digest(file)
    return found


def rounded(rewards: dict | None) -> dict | None:
    return {key: round(value, 9) for key, value in rewards.items()} if rewards else None


def rewards(result: dict) -> dict | None:
    return rounded((result.get("verifier_result") or {}).get("rewards"))


def trial(directory: Path) -> dict:
    result = json.loads((directory / "result.json").read_text())
    steps = {step["step_name"]: rewards(step) for step in result.get("step_results") or []}
    failed = result.get("exception_info") or {}
    return {
        "rewards": rewards(result),
        "steps": steps,
        "artifacts": artifacts(directory),
        "exception": failed.get("exception_type"),
    }


def name_of(directory: Path) -> str:
    """The name of the task's directory; the name in a result may differ."""
    config = json.loads((directory / "result.json").read_text())["config"]
    return Path(config["task"]["path"]).name


def trials(jobs: list[Path]) -> dict[str, dict]:
    found = [file.parent for job in jobs for file in job.glob("*/result.json")]
    return {name_of(directory): trial(directory) for directory in found}


def main(ours: Path, theirs: Path) -> int:
    mine = trials([ours])
    others = trials([job for job in theirs.iterdir() if job.is_dir()])
    same = different = alone = 0
    for task in sorted(mine.keys() | others.keys()):
        if task not in mine or task not in others:
            alone += 1
            print(f"{task:45} only {'ours' if task in mine else 'theirs'} has it")
            continue
        kinds = [kind for kind in ("rewards", "steps", "artifacts") if mine[task][kind] != others[task][kind]]
        if kinds:
            different += 1
            print(f"{task:45} DIFFERENT: {', '.join(kinds)}")
            for kind in [*kinds, "exception"]:
                print(f"    {kind}: ours {mine[task][kind]}, theirs {others[task][kind]}")
        else:
            same += 1
            steps = f", {len(mine[task]['steps'])} steps" if mine[task]["steps"] else ""
            files = f", {len(mine[task]['artifacts'])} artifacts" if mine[task]["artifacts"] else ""
            failed = mine[task]["exception"] or others[task]["exception"]
            print(f"{task:45} same: {mine[task]['rewards']}{steps}{files}{f' ({failed})' if failed else ''}")
    print(f"{same} same, {different} different, {alone} in one of the two only")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
