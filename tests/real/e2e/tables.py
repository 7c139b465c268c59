"""Reads the tables of a run with Polars and compares their aggregates with result.json."""

import json
import sys
from pathlib import Path

import polars as pl

run = Path(sys.argv[1])
result = json.loads((run / "result.json").read_text())
tables = run / "tables"

trials = pl.read_parquet(tables / "trials.parquet")
tries = pl.read_parquet(tables / "tries.parquet")
metrics = pl.read_parquet(tables / "metrics_long.parquet")
summary = pl.read_parquet(tables / "agent_summary.parquet")
comparisons = pl.read_parquet(tables / "comparisons.parquet")


def same(found, expected, what):
    close = found == expected
    if isinstance(found, float) and isinstance(expected, float):
        close = abs(found - expected) <= 1e-9 * max(1.0, abs(expected))
    assert close, f"{what}: {found!r} instead of {expected!r}"


# The first row of a table of the tests must differ from the others, or nothing is compared.
assert summary["success_rate"].n_unique() > 1, summary
assert trials["failure"].drop_nulls().to_list(), trials

for row in summary.iter_rows(named=True):
    agent = row["agent"]
    expected = result["agents"][agent]
    own = trials.filter(pl.col("agent") == agent)
    primary = metrics.filter(pl.col("agent") == agent, pl.col("metric_source") == "primary")
    scored = expected["scored"]
    for name, found, value in [
        ("completed", own.filter(pl.col("outcome") == "completed").height, expected["completed_trials"]),
        ("failed", own.filter(pl.col("outcome") == "failed").height, expected["failed_trials"]),
        ("scored", own["success"].count(), scored["trials"]),
        ("passed", own["success"].sum(), scored["passed"]),
        ("mean of success", own["success"].mean(), scored["pass_rate"]),
        ("mean of reward", own["reward"].mean(), expected["mean_reward"]),
        ("mean of primary metric", primary["metric_value"].mean(), scored["mean_reward"]),
        ("cost", own["cost"].sum(), expected["total_cost"]),
        ("summary: success_rate", row["success_rate"], scored["pass_rate"]),
        ("summary: mean_reward", row["mean_reward"], expected["mean_reward"]),
        ("summary: scored_mean_reward", row["scored_mean_reward"], scored["mean_reward"]),
        ("summary: total", row["total"], expected["total_trials"]),
    ]:
        same(found, value, f"{agent}: {name}")

# Tables without a row have their columns.
for name in ["event_counts_by_trial", "event_counts_by_agent"]:
    events = pl.read_parquet(tables / f"{name}.parquet")
    same((events.height, events.schema["count"]), (0, pl.Int64), name)

same(trials.height, result["total_trials"], "trials")
same(tries["settled"].sum(), result["total_trials"], "settling tries")
same(trials["started_at"].dtype, pl.Datetime("us", "UTC"), "type of times")
(comparison,) = comparisons.iter_rows(named=True)
same(comparison["wins"] - comparison["losses"], int(comparison["difference"] * comparison["pairs"]), "pairs")
same(comparison["pairs"], 8, "pairs")

# The JSON lines have the same rows.
lines = pl.read_ndjson(tables / "metrics_long.jsonl", infer_schema_length=None)
assert lines.select("trial_id", "metric_name", "metric_value").equals(
    metrics.select("trial_id", "metric_name", "metric_value")
)
print(f"{summary.height} agents, {trials.height} trials")
