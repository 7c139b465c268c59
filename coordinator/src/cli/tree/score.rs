//! `rollout tree score`.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use serde_json::{Value, json};

use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::config::ScoringProfile;
use crate::events::sinks::terminal::table;
use crate::results::escape;
use crate::workloads::search::score::{
    ColumnDelta, SweepComparison, SweepSummary, compare, summarize,
};

/// Compare the results of two sweeps as a search does
#[derive(Debug, Args)]
pub(in crate::cli) struct ScoreArgs {
    /// CSV file with the results of the baseline
    #[arg(long, value_name = "CSV")]
    baseline: PathBuf,

    /// CSV file with the results of the candidate
    #[arg(long, value_name = "CSV")]
    candidate: PathBuf,

    /// Scoring profile: `returns`, `sharpe`, or a YAML or JSON file
    #[arg(long, value_name = "NAME|FILE", default_value = "returns")]
    profile: String,

    /// Use only configurations below this number, and show whether all of them succeeded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Print one JSON document, with every column
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(in crate::cli) async fn score(
    args: ScoreArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let width = printer.out.width;
    let text = supervise::blocking(move || compare_files(&args, width)).await?;
    printer.data(&text)?;
    Ok(ExitCode::Success)
}

fn compare_files(args: &ScoreArgs, width: Option<usize>) -> Result<String, CliError> {
    let profile = ScoringProfile::load(&args.profile).map_err(|error| {
        CliError::from_cause(ExitCode::Config, "cannot load the scoring profile", &error)
    })?;
    let read = |path: &Path| {
        let failed = |error: &(dyn std::error::Error + 'static)| {
            CliError::from_cause(ExitCode::Config, format!("cannot read {}", path.display()), error)
        };
        let file = File::open(path).map_err(|error| failed(&error))?;
        summarize(file, &profile, args.limit).map_err(|error| failed(&error))
    };
    let (baseline, candidate) = (read(&args.baseline)?, read(&args.candidate)?);
    let comparison = compare(&baseline, &candidate, &profile);
    if args.json {
        let document = document(&comparison, &candidate, &profile)
            .map_err(|error| CliError::failure("cannot write the score as JSON", &error))?;
        return Ok(format!("{document}\n"));
    }
    Ok(render(&comparison, &candidate, &profile, width))
}

fn document(
    comparison: &SweepComparison,
    candidate: &SweepSummary,
    profile: &ScoringProfile,
) -> Result<Value, serde_json::Error> {
    let mut document = serde_json::to_value(comparison)?;
    if let Value::Object(fields) = &mut document {
        fields.insert("profile".to_owned(), json!(profile.name));
        fields.insert("profile_digest".to_owned(), json!(profile.digest()?));
        fields.insert("candidate_completeness".to_owned(), json!(candidate.completeness));
        let complete = candidate.completeness.map(|rows| rows.is_complete());
        fields.insert("candidate_is_complete".to_owned(), json!(complete));
    }
    Ok(document)
}

fn render(
    comparison: &SweepComparison,
    candidate: &SweepSummary,
    profile: &ScoringProfile,
    width: Option<usize>,
) -> String {
    let recommendation = &comparison.recommendation;
    let explore = if recommendation.should_explore { "explore" } else { "do not explore" };
    let mut lines = vec![
        format!("{}, score {:.6}: {explore}", recommendation.grade, recommendation.score),
        format!("because {}", recommendation.reasons.join("; ")),
        match comparison.primary_delta {
            Some(delta) => {
                let column = &profile.primary.column;
                format!("{column}: {delta:+} against the baseline, positive is better")
            }
            None => format!("{}: missing on at least one side", profile.primary.column),
        },
        format!(
            "rows used: {} of the baseline, {} of the candidate",
            comparison.baseline_rows_used, comparison.candidate_rows_used
        ),
    ];
    if let Some(rows) = &candidate.completeness {
        let complete = if rows.is_complete() { "complete" } else { "not complete" };
        let (ok, errors) = (rows.ok_count, rows.error_count);
        lines.push(format!("candidate {complete}: {ok} rows succeeded, {errors} did not"));
    }
    if !profile.columns().iter().any(|name| comparison.columns.contains_key(*name)) {
        lines.push(format!(
            "no metric of the profile {} is on both sides: the score has no meaning",
            profile.name
        ));
    }
    for line in &mut lines {
        *line = escape::line(line).into_owned();
    }
    let counted = profile.metrics.iter().filter_map(|metric| {
        let ColumnDelta { baseline_mean, candidate_mean, delta } =
            comparison.columns.get(&metric.column)?;
        let name = escape::line(&metric.column).into_owned();
        let numbers = [metric.weight, *baseline_mean, *candidate_mean, *delta];
        Some([vec![name], numbers.map(|number| number.to_string()).to_vec()].concat())
    });
    let rows: Vec<_> = counted.collect();
    if !rows.is_empty() {
        let header = ["metric", "weight", "baseline", "candidate", "delta"];
        lines.extend([String::new(), table::aligned(&header, rows, 1, width)]);
    }
    lines.push(String::new());
    lines.join("\n")
}
