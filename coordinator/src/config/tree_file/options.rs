//! Inputs to a search from the command line and the host.

use std::path::{Path, PathBuf};

use jiff::Zoned;
use rollout_protocol::name;

use super::super::diagnostics::{ConfigError, Diagnostics, ErrorKind};
use super::super::elements::names;
use super::super::host_path::HostAccess;
use super::super::local_time;
use super::super::location::SourceLocation;
use super::TreeFile;

/// Inputs to a search from the command line and the host.
pub struct TreeOptions<'a> {
    /// Overrides of keys of the file.
    pub overrides: TreeOverrides,
    /// Local time, for the default name.
    pub now: Zoned,
    /// Whether a variable is set here. Its value is never read.
    pub is_set: &'a dyn Fn(&str) -> bool,
    /// Whether commands run on workers of a server. These announce their own variables, so none has
    /// to be set here.
    pub is_remote: bool,
    /// The access of the search to paths of this host.
    pub host: HostAccess<'a>,
}

/// Overrides of keys of the file; the fields are named after the keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TreeOverrides {
    /// `tree_run_id`.
    pub tree_run_id: Option<String>,
    /// `runs_root`.
    pub runs_root: Option<PathBuf>,
    /// `ideas_per_node`.
    pub ideas_per_node: Option<u32>,
    /// `max_depth`.
    pub max_depth: Option<u32>,
    /// `beam_width`.
    pub beam_width: Option<u32>,
    /// `sweep_config_limit`.
    pub sweep_config_limit: Option<u64>,
    /// `max_total_idea_evals`.
    pub max_total_idea_evals: Option<u32>,
    /// `max_parallel_evals`.
    pub max_parallel_evals: Option<u32>,
    /// `eval_timeout_seconds`.
    pub eval_timeout_seconds: Option<f64>,
    /// `eval_retries`.
    pub eval_retries: Option<u32>,
    /// `stop_on_empty_frontier`.
    pub stop_on_empty_frontier: Option<bool>,
    /// `keep_rejected_worktrees`.
    pub keep_rejected_worktrees: Option<bool>,
    /// `keep_failed_artifacts`.
    pub keep_failed_artifacts: Option<bool>,
    /// `limits.sweep_max_parallel`.
    pub sweep_max_parallel: Option<u32>,
    /// `limits.llm_max_inflight`.
    pub llm_max_inflight: Option<u32>,
    /// `limits.llm_rate_limit`.
    pub llm_rate_limit: Option<u32>,
}

/// Replaces the values that were given.
macro_rules! replace {
    ($($given:expr => $place:expr),* $(,)?) => { $(if let Some(value) = $given { $place = value.into(); })* };
}

impl<'a> TreeOptions<'a> {
    /// Default options: no overrides, the current time, the variables that `is_set` reports, evals
    /// on this host, and none of its files.
    pub fn new(is_set: &'a dyn Fn(&str) -> bool) -> Self {
        Self {
            overrides: TreeOverrides::default(),
            now: local_time::now(),
            is_set,
            is_remote: false,
            host: HostAccess::Nothing,
        }
    }

    /// The same for a user who started this program: the search may name every file of this host.
    pub fn for_command_line(is_set: &'a dyn Fn(&str) -> bool) -> Self {
        Self { host: HostAccess::Everything, ..Self::new(is_set) }
    }

    pub(super) fn apply(&self, tree: &mut TreeFile, problems: &mut Diagnostics) {
        let given = self.overrides.clone();
        if let Some(name) = &given.tree_run_id
            && let Err(why) = name::check(name)
        {
            let spot = SourceLocation { key: "--tree-run-id".to_owned(), line: None };
            let found = format!("{name:?}, which {why}");
            let file = Path::new("command line");
            problems.error(spot.error(file, ErrorKind::BadValue, found, names::EXPECTED));
        }
        if let Some(name) = &given.tree_run_id {
            (tree.name, tree.is_named) = (name.clone(), true);
        }
        let search = &mut tree.search;
        replace! {
            given.runs_root => tree.runs_root,
            given.ideas_per_node => search.ideas_per_node,
            given.max_depth => search.max_depth,
            given.beam_width => search.beam_width,
            given.sweep_config_limit => search.sweep_config_limit,
            given.max_total_idea_evals => tree.budgets.evals,
            given.max_parallel_evals => search.max_parallel_evals,
            given.eval_timeout_seconds => search.eval_timeout_seconds,
            given.eval_retries => search.eval_retries,
            given.stop_on_empty_frontier => search.stop_on_empty_frontier,
            given.keep_rejected_worktrees => tree.keep_rejected_worktrees,
            given.keep_failed_artifacts => tree.keep_failed_artifacts,
            given.sweep_max_parallel => tree.limits.sweeps,
            given.llm_max_inflight => tree.limits.inflight,
            given.llm_rate_limit => tree.limits.starts_per_minute,
        }
    }

    /// Checks that every variable that a command on this host refers to without a default is set.
    pub(super) fn check_variables(&self, tree: &TreeFile, problems: &mut Diagnostics) {
        if self.is_remote {
            return;
        }
        for variable in tree.variables() {
            for (name, has_default) in variable.template.variables() {
                if has_default || (self.is_set)(&name) {
                    continue;
                }
                let found = format!("`${{{name}}}`, which is not set in the environment");
                let kind = ErrorKind::UnsetVariable;
                problems.error(ConfigError {
                    hint: Some(format!("export {name}, or write `${{{name}:-default}}`")),
                    ..variable.location.error(&tree.file, kind, found, "variables that are set")
                });
            }
        }
    }
}
