//! Harbor's JSON documents of a job and its trials.

use std::path::{Path, PathBuf};

use rollout_base::shown_path::shown;
use rollout_environment::descriptor::{self, HarborName};
use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::record::{ItemOutcome, StepRecord, Timestamps, TrialRecord, Verdict};
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::metric::MetricKind;
use serde_json::{Map, Value, json};

use super::agent_use::AgentUse;
use super::errors::{exception, exception_type};
use super::names;
use super::stats::HarborStats;
use crate::results::export::source::{ExportSource, SettledTrial};
use crate::results::metrics::TrialScore;

/// Data shared by all documents of a job.
pub(super) struct HarborJob {
    run: RunId,
    id: String,
    name: String,
    jobs: PathBuf,
    provider: ProviderKind,
    verify: bool,
    artifacts: Value,
    agents: Vec<String>,
    n_attempts: u32,
    config: Value,
    created_at: Timestamp,
}

impl HarborJob {
    /// The job of a run, in the directory of jobs that documents name `jobs`.
    pub(super) fn new(source: &ExportSource, jobs: &Path) -> Self {
        let (header, plan) = (&source.header, source.plan());
        let settings = plan.settings();
        Self {
            run: header.run,
            id: names::job_id(header.run),
            name: header.job.clone(),
            jobs: jobs.to_owned(),
            provider: settings.environment.provider.kind(),
            verify: !settings.verifier.disable,
            artifacts: json!(settings.artifacts),
            agents: plan.agents().iter().map(|agent| agent.spec.name.clone()).collect(),
            n_attempts: plan.n_attempts(),
            config: source.config.clone(),
            created_at: header.created_at,
        }
    }

    /// Name of the job.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Path of the job's directory, as documents name it.
    pub(super) fn directory(&self) -> PathBuf {
        self.jobs.join(&self.name)
    }

    /// `config.json` of the job.
    pub(super) fn config(&self) -> Value {
        let metrics: Vec<Value> = self.metrics().iter().map(|kind| json!({"type": kind})).collect();
        let agents: Vec<Value> = self.agents.iter().map(|name| json!({"name": name})).collect();
        let datasets = self.config["datasets"].as_array().into_iter().flatten();
        let datasets: Vec<Value> = datasets.filter_map(dataset).collect();
        json!({
            "job_name": self.name,
            "jobs_dir": self.jobs,
            "n_attempts": self.n_attempts,
            "timeout_multiplier": self.timeout_multiplier(),
            "n_concurrent_trials": self.concurrency(),
            "retry": self.retry(),
            "environment": self.environment(),
            "verifier": self.verifier(),
            "metrics": metrics,
            "agents": agents,
            "datasets": datasets,
            "artifacts": self.artifacts,
        })
    }

    /// `config.json` of a trial.
    pub(super) fn trial_config(&self, trial: &SettledTrial, name: &str) -> Value {
        let of = &trial.name;
        json!({
            "task": {"path": self.task_path(trial), "source": of.dataset},
            "trial_name": name,
            "trials_dir": self.directory(),
            "timeout_multiplier": self.timeout_multiplier(),
            "agent": {"name": of.agent},
            "environment": self.environment(),
            "verifier": self.verifier(),
            "artifacts": self.artifacts,
            "job_id": self.id,
        })
    }

    /// `lock.json` of a trial.
    pub(super) fn lock(&self, trial: &SettledTrial) -> Value {
        let of = &trial.name;
        let mut verifier = self.verifier();
        verifier["environment_mode"] = json!(environment_mode(trial.record.as_ref()));
        json!({
            "schema_version": 2,
            "task": {
                "name": task_name(trial),
                "type": "local",
                "digest": trial.task.files,
                "source": of.dataset,
                "path": self.task_path(trial),
                "git_commit_id": trial.settlement.task_commit(trial.record.as_ref()),
            },
            "timeout_multiplier": self.timeout_multiplier(),
            "agent": {"name": of.agent},
            "environment": self.environment(),
            "verifier": verifier,
        })
    }

    /// `lock.json` of the job without its trials.
    pub(super) fn lock_header(&self) -> Value {
        json!({
            "schema_version": 3,
            "created_at": time(self.created_at),
            "harbor": {},
            "n_concurrent_trials": self.concurrency(),
            "retry": self.retry(),
        })
    }

    /// `result.json` of a trial; `details` is a readable text of its errors.
    pub(super) fn trial_result(
        &self,
        trial: &SettledTrial,
        name: &str,
        details: Option<&str>,
    ) -> Value {
        let (settlement, record) = (&trial.settlement, trial.record.as_ref());
        let (of, verdict) = (&trial.name, &settlement.verdict);
        let by = settlement.by.as_ref();
        let times = record.map(|r| &r.timestamps).or(by.and_then(|by| by.timestamps.as_ref()));
        let steps = record.map(|r| &r.steps[..]).filter(|steps| !steps.is_empty());
        let ended = times.map_or(settlement.settled_at, |times| times.ended_at);
        json!({
            "id": names::trial_id(self.run, settlement.item),
            "task_name": task_name(trial),
            "trial_name": name,
            "trial_uri": names::file_uri(&self.directory().join(name)),
            "task_id": {"path": self.task_path(trial)},
            "source": of.dataset,
            "task_checksum": checksum(trial.task.files),
            "config": self.trial_config(trial, name),
            "agent_info": {"name": of.agent, "version": "unknown"},
            "agent_result": self.agent_result(trial),
            "verifier_result": verified(verdict),
            "verifier_environment_mode": environment_mode(record),
            "exception_info": exception(settlement).map(|kind| json!({
                "exception_type": kind,
                "exception_message": message(verdict),
                "exception_traceback": details.unwrap_or_default(),
                "occurred_at": time(ended),
            })),
            "started_at": times.map(|times| time(times.started_at)),
            "finished_at": time(ended),
            "environment_setup": phase(times, |t| {
                (t.environment_setup_started_at, t.environment_setup_ended_at)
            }),
            "agent_setup": phase(times, |t| (t.agent_setup_started_at, t.agent_setup_ended_at)),
            "agent_execution": phase(times, |t| {
                (t.agent_execution_started_at, t.agent_execution_ended_at)
            }),
            "verifier": phase(times, |t| (t.verifier_started_at, t.verifier_ended_at)),
            "step_results": steps.map(|steps| {
                steps.iter().map(|step| step_result(step, ended)).collect::<Vec<_>>()
            }),
        })
    }

    /// `result.json` of the job.
    pub(super) fn result(&self, source: &ExportSource, stats: &HarborStats) -> Value {
        let header = &source.header;
        let finished = header.is_completed.then(|| time(header.updated_at));
        json!({
            "id": self.id,
            "started_at": time(header.created_at),
            "updated_at": time(header.updated_at),
            "finished_at": finished,
            "n_total_trials": source.plan().len(),
            "stats": stats.document(source.plan().len(), &self.metrics()),
        })
    }

    /// `job.log`.
    pub(super) fn log(&self, source: &ExportSource) -> String {
        format!(
            "Exported by rollout {} from run {}: {} of {} trials\n",
            env!("CARGO_PKG_VERSION"),
            self.run,
            source.len(),
            source.plan().len(),
        )
    }

    /// Tokens and cost of the agent, and all that has no field in Harbor's documents.
    fn agent_result(&self, trial: &SettledTrial) -> Value {
        let mut result = json!({"metadata": {"rollout": self.metadata(trial)}});
        AgentUse::of(trial).write(&mut result);
        result
    }

    /// Data that has no field in Harbor's documents.
    fn metadata(&self, trial: &SettledTrial) -> Value {
        let (settlement, by) = (&trial.settlement, trial.settlement.by.as_ref());
        let score = TrialScore::from_settlement(settlement);
        json!({
            "run": self.run,
            "item": settlement.item,
            "attempt": trial.name.attempt,
            "outcome": settlement.verdict.outcome,
            "reward": settlement.verdict.reward,
            "cost": score.known_cost(),
            "unpriced_calls": score.model_use.unpriced_calls,
            "error": settlement.verdict.error,
            "exec": by.map(|by| by.exec),
            "worker": by.map(|by| &by.worker),
            "host": trial.record.as_ref().map(|record| &record.host),
            "superseded": settlement.superseded.len(),
            "task": {
                "name": trial.name.task,
                "format": trial.task.format,
                "source": trial.task.about.source,
                "metadata": trial.task.about.metadata,
            },
        })
    }

    fn metrics(&self) -> Vec<MetricKind> {
        let metrics = self.config["metrics"].as_array().into_iter().flatten();
        metrics.filter_map(|metric| serde_json::from_value(metric["type"].clone()).ok()).collect()
    }

    fn timeout_multiplier(&self) -> f64 {
        self.config["timeout_multiplier"].as_f64().unwrap_or(1.0)
    }

    fn concurrency(&self) -> u64 {
        self.config["n_concurrent_trials"].as_u64().unwrap_or(1)
    }

    fn retry(&self) -> Value {
        let retry = &self.config["retry"];
        let seconds = |key: &str, default: f64| {
            retry[key].as_f64().map_or(default, |milliseconds| milliseconds / 1000.0)
        };
        json!({
            "max_retries": retry["max_attempts"].as_u64().unwrap_or(1).saturating_sub(1),
            "wait_multiplier": retry["multiplier"].as_f64().unwrap_or(1.0),
            "min_wait_sec": seconds("initial_delay_ms", 1.0),
            "max_wait_sec": seconds("max_delay_ms", 60.0),
        })
    }

    /// Harbor has no equivalent of the process provider; it accepts a class name for environments
    /// that are not built in.
    fn environment(&self) -> Value {
        match descriptor::for_kind(self.provider).harbor {
            HarborName::Type(name) => json!({"type": name}),
            HarborName::Class(path) => json!({"import_path": path}),
        }
    }

    fn verifier(&self) -> Value {
        let verifier = &self.config["verifier"];
        json!({
            "override_timeout_sec": verifier["override_timeout_sec"],
            "max_timeout_sec": verifier["max_timeout_sec"],
            "disable": !self.verify,
        })
    }

    /// The task's directory, derived from the configuration.
    fn task_path(&self, trial: &SettledTrial) -> String {
        let of = &trial.name;
        let mut datasets = self.config["datasets"].as_array().into_iter().flatten();
        let path = datasets.find_map(|dataset| {
            let path = Path::new(dataset["path"].as_str()?);
            let name = dataset["name"].as_str().or(path.file_name()?.to_str())?;
            (name == of.dataset).then_some(path)
        });
        shown(&path.unwrap_or(Path::new(&of.dataset)).join(&of.task)).to_string()
    }
}

/// A dataset of the configuration, if Harbor could find it.
fn dataset(dataset: &Value) -> Option<Value> {
    let keep = |key: &str| dataset.get(key).filter(|value| value.is_string()).cloned();
    let mut kept = Map::new();
    if let Some(path) = dataset["path"].as_str() {
        kept.insert("path".to_owned(), shown(Path::new(path)).to_string().into());
    } else {
        kept.insert("name".to_owned(), keep("name")?);
        kept.extend(keep("version").map(|version| ("version".to_owned(), version)));
    }
    Some(Value::Object(kept))
}

/// The task's name in Harbor: from its task file, else from its directory.
pub(super) fn task_name(trial: &SettledTrial) -> &str {
    trial.task.about.name.as_deref().unwrap_or(&trial.name.task)
}

fn message(verdict: &Verdict) -> &str {
    verdict.error.as_ref().map_or("cancelled by the user", |error| error.message.as_str())
}

fn verified(verdict: &Verdict) -> Option<Value> {
    (verdict.outcome == ItemOutcome::Completed).then(
        || json!({"rewards": verdict.numbers().collect::<std::collections::BTreeMap<_, _>>()}),
    )
}

/// Whether the verifier had its own environment; `None` for a trial with steps.
fn environment_mode(record: Option<&TrialRecord>) -> Option<&'static str> {
    let record = record.filter(|record| record.steps.is_empty())?;
    Some(if record.verifier_environment.is_some() { "separate" } else { "shared" })
}

fn step_result(step: &StepRecord, ended: Timestamp) -> Value {
    let verdict = Verdict {
        rewards: step.rewards.clone(),
        reward: step.reward,
        error: step.error.clone(),
        ..Verdict::completed(0.0)
    };
    let has_reward = verdict.numbers().next().is_some();
    let exception = step.error.as_ref().and_then(|error| exception_type(error.kind));
    let occurred = step.verifier_ended_at.or(step.agent_execution_ended_at).unwrap_or(ended);
    json!({
        "step_name": step.name,
        "verifier_result": has_reward.then(|| verified(&verdict)),
        "exception_info": exception.map(|kind| json!({
            "exception_type": kind,
            "exception_message": message(&verdict),
            "exception_traceback": "",
            "occurred_at": time(occurred),
        })),
        "agent_execution": timing(step.agent_execution_started_at, step.agent_execution_ended_at),
        "verifier": timing(step.verifier_started_at, step.verifier_ended_at),
    })
}

fn phase(
    times: Option<&Timestamps>,
    bounds: fn(&Timestamps) -> (Option<Timestamp>, Option<Timestamp>),
) -> Option<Value> {
    let (started, ended) = bounds(times?);
    timing(started, ended)
}

fn timing(started: Option<Timestamp>, ended: Option<Timestamp>) -> Option<Value> {
    let started = started?;
    Some(json!({"started_at": time(started), "finished_at": ended.map(time)}))
}

/// A time with microseconds, like Python's.
fn time(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// A digest without its algorithm prefix.
fn checksum(digest: Digest) -> String {
    digest.hex()
}

/// `trial.log`.
pub(super) fn trial_log(trial: &SettledTrial) -> String {
    let settlement = &trial.settlement;
    let outcome = settlement.verdict.outcome.as_str();
    let mut log = format!("{} {} {outcome}\n", time(settlement.settled_at), settlement.name);
    for superseded in &settlement.superseded {
        log.push_str(&format!(
            "superseded: execution {} by {}\n",
            superseded.exec, superseded.worker
        ));
    }
    log
}
