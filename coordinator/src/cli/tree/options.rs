//! Options that override keys of the search file.

use std::path::PathBuf;

use clap::{ArgAction, Args, value_parser};

use crate::config::TreeOverrides;

/// Options that override keys of the search file.
#[derive(Debug, Args)]
pub(super) struct KeyOptions {
    /// Name of the search and of its directory
    #[arg(long, value_name = "NAME")]
    tree_run_id: Option<String>,

    /// Directory of searches
    #[arg(long, value_name = "DIR")]
    runs_root: Option<PathBuf>,

    /// Ideas tried per node
    #[arg(long, value_name = "K", value_parser = value_parser!(u32).range(1..=100_000))]
    ideas_per_node: Option<u32>,

    /// Depth at which the search ends
    #[arg(long, value_name = "D", value_parser = value_parser!(u32).range(1..=100_000))]
    max_depth: Option<u32>,

    /// Nodes promoted per depth
    #[arg(long, value_name = "B", value_parser = value_parser!(u32).range(1..=100_000))]
    beam_width: Option<u32>,

    /// Configurations that every sweep runs
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=4_294_967_295))]
    sweep_config_limit: Option<u64>,

    /// Maximum evals of the whole search
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=100_000))]
    max_total_idea_evals: Option<u32>,

    /// Maximum concurrent evals
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000))]
    max_parallel_evals: Option<u32>,

    /// Time limit of an eval
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    eval_timeout_seconds: Option<f64>,

    /// Retries of an eval whose commands failed
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=19))]
    eval_retries: Option<u32>,

    /// End the search when no node was promoted
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    stop_on_empty_frontier: Option<bool>,

    /// Keep checkouts of candidates that were not promoted
    #[arg(long)]
    keep_rejected_worktrees: bool,

    /// Keep the outputs of failed evals
    #[arg(long)]
    keep_failed_artifacts: bool,

    /// Maximum concurrent sweeps over all workers
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000))]
    sweep_max_parallel: Option<u32>,

    /// Maximum concurrent commands for ideas, implementations and reviews over all workers
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000))]
    llm_max_inflight: Option<u32>,

    /// Maximum starts of these commands per minute
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000))]
    llm_rate_limit: Option<u32>,
}

impl KeyOptions {
    /// Whether the command line names the search.
    pub(super) fn has_name(&self) -> bool {
        self.tree_run_id.is_some()
    }

    /// The overrides of the search file.
    pub(super) fn overrides(&self) -> TreeOverrides {
        TreeOverrides {
            tree_run_id: self.tree_run_id.clone(),
            runs_root: self.runs_root.clone(),
            ideas_per_node: self.ideas_per_node,
            max_depth: self.max_depth,
            beam_width: self.beam_width,
            sweep_config_limit: self.sweep_config_limit,
            max_total_idea_evals: self.max_total_idea_evals,
            max_parallel_evals: self.max_parallel_evals,
            eval_timeout_seconds: self.eval_timeout_seconds,
            eval_retries: self.eval_retries,
            stop_on_empty_frontier: self.stop_on_empty_frontier,
            keep_rejected_worktrees: self.keep_rejected_worktrees.then_some(true),
            keep_failed_artifacts: self.keep_failed_artifacts.then_some(true),
            sweep_max_parallel: self.sweep_max_parallel,
            llm_max_inflight: self.llm_max_inflight,
            llm_rate_limit: self.llm_rate_limit,
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(seconds),
        _ => Err("expected a number of seconds above 0, at most 1e9".to_owned()),
    }
}
