//! Files of tree searches (`tree.yaml`, or JSON): what is searched, how wide and deep, with which
//! commands, and what counts as better. Read as job files are: every fault at once, and every key
//! that has no meaning is one.

mod commands;
mod document;
mod options;
mod profile;
mod search;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rollout_protocol::retry::RetryPolicy;

use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::{names, retry};
use super::profile::ScoringProfile;
use super::reader::{ConfigReader, Field, Fields, UnknownKeys};
use super::reference::KeyReference;
use super::{job_file, read};

pub use commands::{CommandEnvironment, SearchCommand, SearchCommands};
pub use document::{differences, document as tree_document};
pub use options::{TreeOptions, TreeOverrides};
pub use search::{ArtifactPolicy, ContextStrategy, DedupeScope, SearchSettings};

keys! {
    /// The keys of files of searches.
    pub(crate) table TreeKeys {
        tree_run_id: "text", "the local time", "Name of the search and of its directory.";
        runs_root: "path", "tree_runs", "Parent of that directory; counts from the current one.";
        repository: "path", ".",
            "What is searched: a git repository or a directory of one; counts from the file.";
        root_commit: "text", "HEAD", "Commit, branch or tag to begin with.";
        root_baseline_csv: "path", "", "Its results; counts from the file.";
        context_ideas_dirs: "list of paths", "", "Earlier ideas that the generator is shown.",
            "" => search::SearchKeys::ALL;
        results_file: "text", "meta_config_sweep_results.csv", "What a sweep writes.";
        profile: "name, path or table", "returns", "What counts how much.",
            "profile" => profile::ProfileKeys::ALL;
        commands: "table", "", "What is run.", "commands" => commands::CommandsKeys::ALL;
        environment: "table", "", "Where commands run.",
            "environment" => commands::PlaceKeys::ALL;
        retry: "table", "", "Retry of infrastructure failures.", "retry" => retry::ParkKeys::ALL;
        limits: "table", "", "Commands at once, over all workers.", "limits" => LimitKeys::ALL;
        budgets: "table", "", "What may be spent; time and cost are looked at between depths.",
            "budgets" => BudgetKeys::ALL;
        keep_rejected_worktrees: "true|false", "false", "Keep checkouts not promoted.";
        keep_failed_artifacts: "true|false", "false", "Keep what failed evals wrote.";
    }

    /// The keys of `limits`.
    pub(crate) table LimitKeys {
        sweep_max_parallel: "integer", "", "Sweeps.";
        llm_max_inflight: "integer", "", "Commands for ideas, implementations and reviews.";
        llm_rate_limit: "integer", "", "Their starts per minute.";
    }

    /// The keys of `budgets`.
    pub(crate) table BudgetKeys {
        evals: "integer", "", "Another word for `max_total_idea_evals`.";
        seconds: "number", "", "Seconds that evals take together.";
        cost: "number", "", "What they cost together, as commands report it.";
    }
}

/// The reference of files of searches.
pub static TREE_REFERENCE: LazyLock<KeyReference> =
    LazyLock::new(|| KeyReference::new("tree.yaml", TreeKeys::ALL, EQUIVALENT_TABLES));

const EQUIVALENT_TABLES: &[(&str, &str)] = &[
    ("commands.ideas.environment", "environment"),
    ("commands.implement.environment", "environment"),
    ("commands.tests.environment", "environment"),
    ("commands.review.environment", "environment"),
    ("commands.sweep.environment", "environment"),
    ("commands.implement", "commands.ideas"),
    ("commands.tests", "commands.ideas"),
    ("commands.review", "commands.ideas"),
    ("commands.sweep", "commands.ideas"),
    ("profile.risk[]", "profile.primary"),
];

/// Largest number of anything that is at once or in a row: far above any use, so that a slip of a
/// key is seen.
const MAX_COUNT: u64 = 100_000;

/// A search, as its file and the command line say.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeFile {
    /// The file.
    pub file: PathBuf,
    /// `tree_run_id`: its name, and that of its directory.
    pub name: String,
    /// Whether the file or the command line says so; otherwise the clock did, and will say another
    /// one the next time.
    pub is_named: bool,
    /// `runs_root`: parent of that directory; counts from the current one.
    pub runs_root: PathBuf,
    /// `repository`; counts from the file, as `root_baseline_csv` and `context_ideas_dirs` do.
    pub repository: PathBuf,
    /// `root_commit`: what names it in the repository.
    pub root_commit: String,
    /// `root_baseline_csv`: the results that everything is ranked against.
    pub root_baseline_csv: PathBuf,
    /// `context_ideas_dirs`: what the generator of ideas is shown beside the nodes' ideas.
    pub context_ideas_dirs: Vec<PathBuf>,
    /// How wide and deep, and what is promoted.
    pub search: SearchSettings,
    /// `profile`: what counts how much.
    pub profile: ScoringProfile,
    /// `results_file`: what a sweep writes its results into.
    pub results_file: String,
    /// `commands`.
    pub commands: SearchCommands,
    /// `environment`, for commands without one of their own.
    pub environment: CommandEnvironment,
    /// `limits`.
    pub limits: SearchLimits,
    /// `retry.max_park_sec`: longest wait of an eval for a service that gives no answer, seconds.
    pub max_park_sec: u32,
    /// `budgets`.
    pub budgets: SearchBudgets,
    /// `keep_rejected_worktrees`.
    pub keep_rejected_worktrees: bool,
    /// `keep_failed_artifacts`.
    pub keep_failed_artifacts: bool,
}

/// Commands at once, over all workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SearchLimits {
    /// `sweep_max_parallel`: sweeps.
    pub sweeps: Option<u32>,
    /// `llm_max_inflight`: commands for ideas, implementations and reviews.
    pub inflight: Option<u32>,
    /// `llm_rate_limit`: their starts per minute.
    pub starts_per_minute: Option<u32>,
}

/// What may be spent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SearchBudgets {
    /// `evals`, or `max_total_idea_evals`.
    pub evals: Option<u32>,
    /// `seconds` that evals take together.
    pub seconds: Option<f64>,
    /// `cost`, in the unit of what commands report.
    pub cost: Option<f64>,
}

impl TreeFile {
    /// The directory of the search.
    pub fn run_dir(&self) -> PathBuf {
        self.runs_root.join(&self.name)
    }

    /// A path of the file, as it is found from the current directory.
    pub fn resolve_path(&self, path: &Path) -> PathBuf {
        base_dir(&self.file).join(path)
    }
}

/// The directory that relative paths of a file count from.
fn base_dir(file: &Path) -> &Path {
    match file.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    }
}

/// Reads and checks a file; nothing when it has no structure at all.
pub fn read_tree(
    file: &Path,
    options: &TreeOptions<'_>,
    problems: &mut Diagnostics,
) -> Option<TreeFile> {
    let text = read::text(file, problems)?;
    let root = job_file::parse_document(file, &text, problems)?;
    let reader = ConfigReader::new(file, UnknownKeys::Errors);
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
    let environment = commands::read_environment(&fields.take(TreeKeys::environment));
    let evals = fields.take(search::SearchKeys::max_total_idea_evals);
    let default = environment.clone();
    let name = names::read(&fields.take(TreeKeys::tree_run_id));
    TreeFile {
        file: file.to_owned(),
        is_named: name.is_some(),
        name: name.unwrap_or_else(|| options.now.strftime("%Y%m%d_%H%M%S").to_string()),
        runs_root: path(&fields.take(TreeKeys::runs_root)).unwrap_or_else(|| "tree_runs".into()),
        repository: path(&fields.take(TreeKeys::repository)).unwrap_or_else(|| ".".into()),
        root_commit: root_commit(&fields.take(TreeKeys::root_commit)),
        root_baseline_csv: baseline(&fields.take(TreeKeys::root_baseline_csv), base_dir(file)),
        context_ideas_dirs: directories(&fields.take(TreeKeys::context_ideas_dirs), base_dir(file)),
        search: search::read(fields),
        profile: profile::read(&fields.take(TreeKeys::profile), base_dir(file)),
        results_file: names::read(&fields.take(TreeKeys::results_file))
            .unwrap_or_else(|| "meta_config_sweep_results.csv".to_owned()),
        commands: commands::read(&fields.take(TreeKeys::commands), &default),
        environment,
        limits: limits(&fields.take(TreeKeys::limits)),
        max_park_sec: max_park_sec(&fields.take(TreeKeys::retry)),
        budgets: budgets(&fields.take(TreeKeys::budgets), &evals),
        keep_rejected_worktrees: fields
            .take(TreeKeys::keep_rejected_worktrees)
            .bool()
            .unwrap_or(false),
        keep_failed_artifacts: fields.take(TreeKeys::keep_failed_artifacts).bool().unwrap_or(false),
    }
}

fn path(field: &Field<'_>) -> Option<PathBuf> {
    field.path()
}

/// Directories that are there.
fn directories(field: &Field<'_>, base: &Path) -> Vec<PathBuf> {
    let read = |item: &Field<'_>| {
        let path = item.path()?;
        if !base.join(&path).is_dir() {
            let found = format!("`{}`, no such directory", path.display());
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
    if !base.join(&path).is_file() {
        field.reject(ErrorKind::NotFound, format!("`{}`, no such file", path.display()), expected);
    }
    path
}

/// A name of a commit that git cannot take for an option.
fn root_commit(field: &Field<'_>) -> String {
    let head = "HEAD".to_owned();
    let Some(name) = field.non_empty_string() else { return head };
    if name.starts_with('-') || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        field.bad_value("a commit, branch or tag");
        return head;
    }
    name
}

/// A whole number of at least `least`.
fn count(field: &Field<'_>, least: u64) -> Option<u32> {
    field.integer(&(least..=MAX_COUNT)).and_then(|n| u32::try_from(n).ok())
}

/// The wait of `retry`. How often evals are tried again, `eval_retries` says.
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

fn budgets(field: &Field<'_>, total: &Field<'_>) -> SearchBudgets {
    let evals = count(total, 0);
    let Some(mut fields) = field.mapping().filter(|_| field.is_present()) else {
        return SearchBudgets { evals, ..SearchBudgets::default() };
    };
    let here = fields.take(BudgetKeys::evals);
    if here.is_present() && total.is_present() {
        let found = format!("also `{}`", total.location().key);
        here.reject(ErrorKind::Conflict, found, "only one of the two");
    }
    let amount = |field: &Field<'_>| field.number("a number above 0", |v| v > 0.0 && v <= 1e12);
    let budgets = SearchBudgets {
        evals: count(&here, 0).or(evals),
        seconds: amount(&fields.take(BudgetKeys::seconds)),
        cost: amount(&fields.take(BudgetKeys::cost)),
    };
    fields.finish();
    budgets
}
