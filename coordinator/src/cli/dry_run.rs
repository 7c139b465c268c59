//! `rollout run --dry-run`: the plan without a run.

use rollout_protocol::exit::ExitCode;
use rollout_protocol::spec::timeout::Timeouts;

use super::error::CliError;
use super::output::Printer;
use crate::config::{Job, KeyProvenance};
use crate::events::sinks::terminal::table;
use crate::launch::planning::pack_cache;
use crate::plan::{self, DryRun, ImageView, PreparedJob, TaskView};
use crate::results::escape;
use crate::sources::datasets::{self, BundleSink, FormatView};

/// Builds the plan without storing anything, and prints it.
pub(super) async fn show(
    prepared: PreparedJob,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let PreparedJob { job, datasets, warnings } = prepared;
    let scratch = tempfile::tempdir()
        .map_err(|error| CliError::failure("cannot create a temporary directory", &error))?;
    let pack_cache = Some(pack_cache(&job.jobs_dir.join(".rollout")));
    let holder = None;
    let sink = BundleSink { store: None, scratch: scratch.path().to_owned(), holder, pack_cache };
    let formats = datasets::formats(&datasets);
    let (plan, tasks) = plan::build(&job, datasets, &sink).await?;
    let shown = plan::dry_run(&job, &plan, &tasks, &formats, warnings);
    let text = if json {
        let text = serde_json::to_string(&shown)
            .map_err(|error| CliError::failure("cannot write the plan as JSON", &error))?;
        text + "\n"
    } else {
        render(&job, &shown, printer.out.width)
    };
    printer.data(&text)?;
    Ok(ExitCode::Success)
}

/// The plan as text.
fn render(job: &Job, plan: &DryRun, width: Option<usize>) -> String {
    let counts = &plan.counts;
    let of = |count: usize, noun: &str| {
        let s = if count == 1 { "" } else { "s" };
        format!("{count} {noun}{s}")
    };
    let mut lines = vec![
        format!(
            "{}: {} = {} x {} x {}",
            job.name,
            of(usize::try_from(counts.trials).unwrap_or(usize::MAX), "trial"),
            of(counts.agents, "agent"),
            of(counts.tasks, "task"),
            of(counts.attempts as usize, "attempt"),
        ),
        format!("plan {}", plan.plan_digest),
        format!("run directory {}", plan.run_dir.display()),
        format!(
            "environment {}, at most {} at once",
            job.settings.environment.provider.kind(),
            of(job.n_concurrent_trials as usize, "trial"),
        ),
        format!("agents {}", agents(job)),
    ];
    for line in &mut lines {
        *line = escape::line(line).into_owned();
    }
    lines.push(String::new());
    let set = plan.provenance.iter().map(|KeyProvenance { key, source }| {
        vec![escape::line(key).into_owned(), escape::line(source).into_owned()]
    });
    lines.push(table::aligned(&["key", "set by"], set.collect(), 2, width));
    lines.push(tasks(&plan.tasks, width));
    lines.extend(formats(&plan.tasks));
    for task in &plan.tasks {
        if let Some(fault) = &task.fault {
            let text = format!("{}/{} cannot run: {fault}", task.dataset, task.task);
            lines.push(escape::line(&text).into_owned());
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Reasons for the formats of the tasks, one line each.
fn formats(tasks: &[TaskView]) -> Vec<String> {
    let mut reasons: Vec<(&FormatView, usize)> = Vec::new();
    for task in tasks {
        match reasons.iter_mut().find(|(known, _)| **known == task.format) {
            Some((_, count)) => *count += 1,
            None => reasons.push((&task.format, 1)),
        }
    }
    let line = |(format, count): (&FormatView, usize)| {
        let tasks = if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") };
        let text = format!("{tasks} in the format {}, {}", format.name, format.reason);
        escape::line(&text).into_owned()
    };
    reasons.into_iter().map(line).collect()
}

fn agents(job: &Job) -> String {
    let names: Vec<&str> = job.agents.iter().map(|agent| agent.spec.name.as_str()).collect();
    names.join(", ")
}

fn tasks(tasks: &[TaskView], width: Option<usize>) -> String {
    let header = [
        "task", "format", "image", "cpus", "memory", "storage", "build", "install", "agent",
        "verifier",
    ];
    let rows = tasks.iter().map(|task| {
        let name = format!("{}/{}", task.dataset, task.task);
        let image = match &task.image {
            ImageView::Build { .. } => "built",
            ImageView::Named { reference } => reference,
            ImageView::Host => "host",
        };
        let resources = &task.resources;
        let Timeouts { build_sec, install_sec, agent_sec, verifier_sec } = task.timeouts;
        let mut row = vec![
            escape::line(&name).into_owned(),
            task.format.name.to_string(),
            escape::line(image).into_owned(),
        ];
        let ceiling = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        let mib = |amount: Option<u64>| ceiling(amount.map(|amount| format!("{amount} MiB")));
        row.push(ceiling(resources.cpu_ceiling().map(|cpus| cpus.to_string())));
        row.extend([resources.memory_ceiling_mb(), resources.storage_ceiling_mb()].map(mib));
        let limit = |sec: Option<f64>| sec.map_or_else(|| "none".to_owned(), |s| format!("{s} s"));
        row.extend([Some(build_sec), Some(install_sec), agent_sec, Some(verifier_sec)].map(limit));
        row
    });
    table::aligned(&header, rows.collect(), 3, width)
}
