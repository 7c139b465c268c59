//! Search files (`tree.yaml`, or JSON): repository, extent, commands and scoring of a tree search.
//! Read like job files: all errors are reported at once, and unknown keys are errors.

#[cfg(test)]
mod agent_tests;
mod agents;
mod budgets;
mod commands;
mod document;
mod options;
mod profile;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rollout_base::shown_path::shown;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::eval::RESULTS_FILE;

use super::catalogue::PriceTable;
use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::gateway::GatewayConfig;
use super::elements::step_agent::StepAgentKeys;
use super::elements::variables::Variable;
use super::elements::{gateway, names, retry, variables};
use super::profile::ScoringProfile;
use super::reader::{ConfigReader, Field, Fields, UnknownKeys};
use super::reference::KeyReference;
use super::{job_file, read};

use agents::AgentReading;

pub use agents::StepAgent;
pub use budgets::SearchBudgets;
pub use commands::{CommandEnvironment, SearchCommand, SearchCommands};
pub use document::{differences, document as tree_document};
pub use options::{TreeOptions, TreeOverrides};
pub use search::{ArtifactPolicy, ContextStrategy, DedupeScope, SearchSettings};

keys! {
    /// The keys of search files.
    pub(crate) table TreeKeys {
        tree_run_id: Value("text"), "local time", "Name of the search and of its directory.";
        runs_root: HostOutput("path"), "tree_runs",
            "Parent of that directory; relative to the current directory.";
        // Git reads settings of a repository, which may name commands: an upload is none.
        repository: Source("path", HostSource::OperatorPath), ".",
            "Git repository to search, or a directory in one; relative to the file.";
        root_commit: Value("text"), "HEAD", "Commit, branch or tag to start from.";
        root_baseline_csv: Source("path", HostSource::Path), "", "Results of the root commit; relative to the file.";
        context_ideas_dirs: Source("list of paths", HostSource::Path), "",
            "Directories of earlier ideas to show to the idea generator.",
            "" => search::SearchKeys::ALL;
        results_file: EnvironmentPath("text"), "meta_config_sweep_results.csv",
            "File that a sweep writes its results to.";
        profile: NameOrHostFile("name, path or table", "use the name of a built-in profile, or a table",
            ScoringProfile::BUILT_IN), "returns", "Scoring profile.",
            "profile" => profile::ProfileKeys::ALL;
        commands: Value("table"), "", "Commands of the search.", "commands" => commands::CommandsKeys::ALL;
        agents_dir: HostFile("path", "use agents of the shipped catalogue"), "none",
            "Directory with further agents of the catalogue, a TOML file each; relative to the file.";
        gateway: Value("table"), "none", "Model servers that agents call through their worker.",
            "gateway" => gateway::GatewayKeys::ALL;
        secrets: Value("list of names"), "none",
            "Variables whose values are secrets: masked in all output.";
        environment: Value("table"), "", "Environment of the commands.",
            "environment" => commands::PlaceKeys::ALL;
        retry: Value("table"), "", "Retry of infrastructure failures.", "retry" => retry::ParkKeys::ALL;
        limits: Value("table"), "",
            "Limits on concurrent commands, over all workers.", "limits" => LimitKeys::ALL;
        budgets: Value("table"), "", "Budgets; time and cost of the search are checked between depths.",
            "budgets" => budgets::BudgetKeys::ALL;
        keep_rejected_worktrees: Value("true|false"), "false", "Keep checkouts that were not promoted.";
        keep_failed_artifacts: Value("true|false"), "false", "Keep outputs of failed evals.";
    }

    /// The keys of `limits`.
    pub(crate) table LimitKeys {
        sweep_max_parallel: Value("integer"), "", "Concurrent sweeps.";
        llm_max_inflight: Value("integer"), "",
            "Concurrent commands for ideas, implementations and reviews.";
        llm_rate_limit: Value("integer"), "", "Starts of such commands per minute.";
    }
}

/// The reference of search files.
pub static TREE_REFERENCE: LazyLock<KeyReference> =
    LazyLock::new(|| KeyReference::new("tree.yaml", TreeKeys::ALL, EQUIVALENT_TABLES));

const EQUIVALENT_TABLES: &[(&str, &str)] = &[
    ("commands.ideas.environment", "environment"),
    ("commands.implement.environment", "environment"),
    ("commands.tests.environment", "environment"),
    ("commands.review.environment", "environment"),
    ("commands.sweep.environment", "environment"),
    ("commands.implement", "commands.ideas"),
    ("commands.review", "commands.ideas"),
    ("commands.sweep", "commands.tests"),
    ("profile.risk[]", "profile.primary"),
];

/// Largest count of any kind: far above any use, so that typing errors are found.
const MAX_COUNT: u64 = 100_000;

/// A search, as set by its file and the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeFile {
    /// The file.
    pub file: PathBuf,
    /// `tree_run_id`: name of the search and of its directory.
    pub name: String,
    /// Whether the file or the command line sets the name. Otherwise it comes from the clock and
    /// differs the next time.
    pub is_named: bool,
    /// `runs_root`: parent of that directory; relative to the current directory.
    pub runs_root: PathBuf,
    /// `repository`; relative to the file, as `root_baseline_csv` and `context_ideas_dirs` are.
    pub repository: PathBuf,
    /// `root_commit`: a revision in the repository.
    pub root_commit: String,
    /// `root_baseline_csv`: the baseline results.
    pub root_baseline_csv: PathBuf,
    /// `context_ideas_dirs`: earlier ideas shown to the idea generator, besides those of the nodes.
    pub context_ideas_dirs: Vec<PathBuf>,
    /// Extent and promotion rules.
    pub search: SearchSettings,
    /// `profile`: the scoring profile.
    pub profile: ScoringProfile,
    /// `results_file`: the file that a sweep writes its results to.
    pub results_file: String,
    /// `commands`.
    pub commands: SearchCommands,
    /// The model servers of its agents: those of `gateway`, and those that their models need.
    pub gateway: Option<GatewayConfig>,
    /// `secrets`: variables whose values are secrets.
    pub secrets: BTreeSet<String>,
    /// `environment`, for commands without one of their own.
    pub environment: CommandEnvironment,
    /// `limits`.
    pub limits: SearchLimits,
    /// `retry.max_park_sec`: longest wait of an eval for an unavailable service, seconds.
    pub max_park_sec: u32,
    /// `budgets`.
    pub budgets: SearchBudgets,
    /// `keep_rejected_worktrees`.
    pub keep_rejected_worktrees: bool,
    /// `keep_failed_artifacts`.
    pub keep_failed_artifacts: bool,
}

/// Limits on concurrent commands, over all workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SearchLimits {
    /// `sweep_max_parallel`: sweeps.
    pub sweeps: Option<u32>,
    /// `llm_max_inflight`: commands for ideas, implementations and reviews.
    pub inflight: Option<u32>,
    /// `llm_rate_limit`: their starts per minute.
    pub starts_per_minute: Option<u32>,
}

impl TreeFile {
    /// The directory of the search.
    pub fn run_dir(&self) -> PathBuf {
        self.runs_root.join(&self.name)
    }

    /// Keeps scripts and shipped prompts of agents from the document of an earlier session of the
    /// search, where the file defines the same agents.
    pub fn keep_agents(&mut self, recorded: &serde_json::Value) {
        let SearchCommands { ideas, implement, review, .. } = &mut self.commands;
        let steps =
            [("ideas", Some(ideas)), ("implement", Some(implement)), ("review", review.as_mut())];
        for (name, command) in steps {
            if let Some(agent) = command.and_then(|command| command.agent.as_mut()) {
                agent.keep_scripts(&recorded["commands"][name]);
            }
        }
    }

    /// Most that the agents of an attempt of an eval may cost; `None` without a limit, or without an
    /// agent.
    pub fn max_attempt_cost(&self) -> Option<f64> {
        self.budgets.max_attempt_cost(&self.commands)
    }

    /// The variables that commands, their environments and model servers name.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        let keys = self.gateway.iter().flat_map(|gateway| &gateway.keys);
        let commands = self.commands.named().flat_map(|(_, command)| {
            command.env.values().chain(command.environment.proxies.values())
        });
        commands.chain(keys)
    }

    /// The names of these variables, and of declared secrets: only they are read from the
    /// environment of this process.
    pub fn variable_names(&self) -> BTreeSet<String> {
        let named = self.variables().flat_map(|value| value.template.variables());
        named.map(|(name, _)| name).chain(self.secrets.iter().cloned()).collect()
    }

    /// A path of the file, relative to the current directory.
    pub fn resolve_path(&self, path: &Path) -> PathBuf {
        base_dir(&self.file).join(path)
    }
}

/// Servers of known providers with the prices of the shipped table.
fn with_prices(mut gateway: Option<GatewayConfig>) -> Option<GatewayConfig> {
    if let Some(gateway) = &mut gateway {
        gateway::add_prices(&mut gateway.spec, PriceTable::shipped());
    }
    gateway
}

/// The directory that relative paths of a file are relative to.
fn base_dir(file: &Path) -> &Path {
    match file.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    }
}

/// Reads and checks a file; `None` if it has no structure at all.
pub fn read_tree(
    file: &Path,
    options: &TreeOptions<'_>,
    problems: &mut Diagnostics,
) -> Option<TreeFile> {
    let text = read::text(file, problems)?;
    let root = job_file::parse_document(file, &text, problems)?;
    let reader = ConfigReader::new(file, UnknownKeys::Errors)
        .with_host(options.host)
        .with_reference(&TREE_REFERENCE);
    let tree = reader.root(&root).map(|mut fields| {
        let tree = read_fields(file, &mut fields, options);
        fields.finish();
        tree
    });
    problems.extend(reader.into_problems());
    let mut tree = tree?;
    options.apply(&mut tree, problems);
    options.check_variables(&tree, problems);
    Some(tree)
}

fn read_fields(file: &Path, fields: &mut Fields<'_>, options: &TreeOptions<'_>) -> TreeFile {
    let commands = fields.take(TreeKeys::commands);
    let models = commands.texts_of_items(StepAgentKeys::model);
    let named: Vec<_> = models.iter().filter_map(|model| Some(model.split_once('/')?.0)).collect();
    let gateway = gateway::read(&fields.take(TreeKeys::gateway), &named);
    let agents_dir = fields.take(TreeKeys::agents_dir);
    let mut agents = AgentReading::new(&agents_dir, gateway, file);
    let environment = commands::read_environment(&fields.take(TreeKeys::environment));
    let evals = fields.take(search::SearchKeys::max_total_idea_evals);
    let commands = commands::read(&commands, &environment, &mut agents);
    let gateway = with_prices(agents.gateway);
    let budget_field = fields.take(TreeKeys::budgets);
    let budgets = budgets::read(&budget_field, &evals);
    let search = search::read(fields);
    let servers = gateway.as_ref().map(|gateway| &gateway.spec);
    budgets::check(&budget_field, &budgets, &commands, servers, &search);
    let name = names::read(&fields.take(TreeKeys::tree_run_id));
    TreeFile {
        file: file.to_owned(),
        is_named: name.is_some(),
        name: name.unwrap_or_else(|| options.now.strftime("%Y%m%d_%H%M%S").to_string()),
        runs_root: fields.take(TreeKeys::runs_root).path().unwrap_or_else(|| "tree_runs".into()),
        repository: fields.take(TreeKeys::repository).path_or(TreeKeys::repository, "."),
        root_commit: root_commit(&fields.take(TreeKeys::root_commit)),
        root_baseline_csv: baseline(&fields.take(TreeKeys::root_baseline_csv), base_dir(file)),
        context_ideas_dirs: directories(&fields.take(TreeKeys::context_ideas_dirs), base_dir(file)),
        search,
        profile: profile::read(&fields.take(TreeKeys::profile), base_dir(file)),
        results_file: names::read(&fields.take(TreeKeys::results_file))
            .unwrap_or_else(|| RESULTS_FILE.to_owned()),
        commands,
        gateway,
        secrets: variables::read_names(&fields.take(TreeKeys::secrets)),
        environment,
        limits: limits(&fields.take(TreeKeys::limits)),
        max_park_sec: max_park_sec(&fields.take(TreeKeys::retry)),
        budgets,
        keep_rejected_worktrees: fields
            .take(TreeKeys::keep_rejected_worktrees)
            .bool()
            .unwrap_or(false),
        keep_failed_artifacts: fields.take(TreeKeys::keep_failed_artifacts).bool().unwrap_or(false),
    }
}

/// Reads directories, which must exist.
fn directories(field: &Field<'_>, base: &Path) -> Vec<PathBuf> {
    let read = |item: &Field<'_>| {
        let path = item.path()?;
        if !base.join(&path).is_dir() {
            let found = format!("`{}`, no such directory", shown(&path));
            item.reject(ErrorKind::NotFound, found, "a directory with earlier ideas");
        }
        Some(path)
    };
    field.items().unwrap_or_default().iter().filter_map(read).collect()
}

fn baseline(field: &Field<'_>, base: &Path) -> PathBuf {
    let expected = "the CSV file with the results of the root commit";
    field.required(expected);
    let Some(path) = field.path() else { return PathBuf::new() };
    let file = base.join(&path);
    if !file.is_file() {
        let why = if file.exists() { "which is no regular file" } else { "no such file" };
        field.reject(ErrorKind::NotFound, format!("`{}`, {why}", shown(&path)), expected);
    }
    path
}

/// Reads a revision that git cannot take for an option.
fn root_commit(field: &Field<'_>) -> String {
    let head = "HEAD".to_owned();
    let Some(name) = field.non_empty_string() else { return head };
    if name.starts_with('-') || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        field.bad_value("a commit, branch or tag");
        return head;
    }
    name
}

/// Reads a whole number of at least `least`.
fn count(field: &Field<'_>, least: u64) -> Option<u32> {
    field.integer(&(least..=MAX_COUNT)).and_then(|n| u32::try_from(n).ok())
}

/// Reads the wait limit of `retry`. The number of retries is `eval_retries`.
fn max_park_sec(field: &Field<'_>) -> u32 {
    let Some(mut fields) = field.mapping() else { return RetryPolicy::default().max_park_sec };
    let sec = retry::max_park_sec(&mut fields);
    fields.finish();
    sec
}

fn limits(field: &Field<'_>) -> SearchLimits {
    let Some(mut fields) = field.mapping().filter(|_| field.is_present()) else {
        return SearchLimits::default();
    };
    let limits = SearchLimits {
        sweeps: count(&fields.take(LimitKeys::sweep_max_parallel), 1),
        inflight: count(&fields.take(LimitKeys::llm_max_inflight), 1),
        starts_per_minute: count(&fields.take(LimitKeys::llm_rate_limit), 1),
    };
    fields.finish();
    limits
}
