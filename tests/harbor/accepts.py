"""Validates exported jobs with Harbor's own models, and reads them through its viewer's back end.

    accepts.py JOBS_DIR
"""

import json
import logging
import sys
from pathlib import Path

import stats
from fastapi.testclient import TestClient
from harbor.models.job.config import JobConfig
from harbor.models.job.lock import JobLock, TrialLock
from harbor.models.job.result import JobResult
from harbor.models.metric.type import MetricType
from harbor.models.trial.artifact_manifest import ArtifactManifestEntry
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.viewer.server import create_app


def read(model, path: Path):
    """Parses a document as its model; fails if the model drops a key that is not null."""
    text = path.read_text()
    document = model.model_validate_json(text)
    known = json.loads(document.model_dump_json())
    lost = [key for key, value in json.loads(text).items() if value is not None and key not in known]
    assert not lost, f"{path}: the model does not know {lost}"
    return document


def check_trial(trial: Path, job: JobResult) -> TrialResult:
    config = read(TrialConfig, trial / "config.json")
    result = read(TrialResult, trial / "result.json")
    read(TrialLock, trial / "lock.json")
    assert config.trial_name == result.trial_name == trial.name, trial
    assert config == result.config, f"{trial}: two configurations"
    assert config.job_id == job.id, f"{trial}: another job"
    assert result.trial_uri.endswith(f"/{trial.name}"), trial
    assert (result.exception_info is None) or (trial / "exception.txt").exists(), trial
    for manifest in trial.glob("**/artifacts/manifest.json"):
        if manifest.parent.parent == trial or manifest.parent.parent.parent == trial / "steps":
            for line in json.loads(manifest.read_text()):
                entry = ArtifactManifestEntry.model_validate(line)
                there = (manifest.parent.parent / entry.destination).exists()
                assert there or entry.status != "ok", f"{manifest}: {entry.destination}"
    return result


def by_name(stats):
    """Sorts lists of trials, which are in order of completion."""
    if isinstance(stats, list):
        return sorted(stats)
    return {key: by_name(value) for key, value in stats.items()}


def is_close(ours, theirs) -> bool:
    """Whether two documents are equal but for the rounding of numbers."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(is_close(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(is_close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) < 1e-9
    return ours == theirs


def check_stats(job: JobResult, trials: list[TrialResult], kinds: list[MetricType]) -> None:
    """Compares all figures with those that Harbor computes."""
    counted = stats.of_trials(trials, job.n_total_trials, job.stats.n_retries, kinds)
    for of in (job.stats, counted):
        for eval_ in of.evals.values():
            eval_.reward_stats = by_name(eval_.reward_stats)
            eval_.exception_stats = by_name(eval_.exception_stats)
    ours, theirs = job.stats.model_dump(), counted.model_dump()
    assert is_close(ours, theirs), f"{ours}, Harbor computes {theirs}"


def check_viewer(client: TestClient, job: str, trials: list[TrialResult]) -> None:
    def get(path: str):
        answer = client.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"
        return answer.json()

    base = f"/api/jobs/{job}"
    assert get(base)["n_total_trials"] >= len(trials)
    assert get(f"{base}/config")["job_name"] == job
    assert get(f"{base}/tasks")["total"] > 0 or not trials
    listed = get(f"{base}/trials?page_size=100")
    assert listed["total"] == len(trials), f"{job}: {listed['total']} of {len(trials)} trials"
    for trial in trials:
        of = f"{base}/trials/{trial.trial_name}"
        assert get(of)["id"] == str(trial.id)
        for part in ("files", "artifacts", "verifier-output", "agent-logs"):
            get(f"{of}/{part}")


def main(jobs: Path) -> None:
    logging.disable(logging.WARNING)
    client = TestClient(create_app(jobs))
    listed = client.get("/api/jobs?page_size=100").json()
    names = sorted(path.name for path in jobs.iterdir() if path.is_dir())
    assert sorted(item["name"] for item in listed["items"]) == names, listed
    for name in names:
        job = read(JobResult, jobs / name / "result.json")
        config = read(JobConfig, jobs / name / "config.json")
        assert config.job_name == name
        kinds = [metric.type for metric in config.metrics] or [MetricType.MEAN]
        lock = read(JobLock, jobs / name / "lock.json")
        directories = sorted(path.parent for path in (jobs / name).glob("*/result.json"))
        trials = [check_trial(directory, job) for directory in directories]
        assert len(lock.trials) == len(trials), f"{name}: {len(lock.trials)} locks"
        check_stats(job, trials, kinds)
        check_viewer(client, name, trials)
        print(f"{name}: Harbor accepts and shows {len(trials)} trials")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
