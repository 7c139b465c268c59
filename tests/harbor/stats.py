"""Prints the `stats` that Harbor's own functions compute of the trials of a job directory, as its job
does when it ends.

    stats.py JOB_DIR
"""

import json
import sys
from pathlib import Path

from harbor.metrics.factory import MetricFactory
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.metric.type import MetricType
from harbor.models.trial.result import TrialResult
from harbor.utils.pass_at_k import compute_pass_at_k_by_evals


def read_trials(job: Path) -> list[TrialResult]:
    paths = sorted(job.glob("*/result.json"))
    return [TrialResult.model_validate_json(path.read_text()) for path in paths]


def of_trials(
    trials: list[TrialResult], total: int, retries: int, kinds: list[MetricType]
) -> JobStats:
    """Computes the stats of a job with these trials, of `total` planned ones."""
    stats = JobStats.from_trial_results(trials, n_total_trials=total, n_retries=retries)
    for name, eval_ in stats.evals.items():
        mine = [trial for trial in trials if f"{trial.agent_info.name}__{trial.source}" == name]
        valid = [trial.verifier_result.rewards for trial in mine if trial.reward_valid]
        metrics = [MetricFactory.create_metric(kind) for kind in kinds] if valid else []
        eval_.metrics = [metric.compute(valid) for metric in metrics]
    for name, pass_at_k in compute_pass_at_k_by_evals(trials).items():
        stats.evals[name].pass_at_k = pass_at_k
    return stats


def main(job: Path) -> None:
    result = JobResult.model_validate_json((job / "result.json").read_text())
    config = JobConfig.model_validate_json((job / "config.json").read_text())
    kinds = [metric.type for metric in config.metrics] or [MetricType.MEAN]
    stats = of_trials(read_trials(job), result.n_total_trials, result.stats.n_retries, kinds)
    print(json.dumps(json.loads(stats.model_dump_json()), indent=2, sort_keys=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
