//! `rollout tree best` and `rollout tree apply`: the best program of a search.

use std::path::{Path, PathBuf};

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::search::NodeId;
use serde_json::{Value, json};

use super::with_search;
use crate::cli::error::CliError;
use crate::cli::invocation::Invocation;
use crate::cli::output::{Printer, quoted};
use crate::events::sinks::terminal::table;
use crate::results::escape;
use crate::workloads::search::manifest::SearchManifest;
use crate::workloads::search::report::{SearchOverview, best_path};
use crate::workloads::search::repository::{RepositoryError, SearchChanges, SourceRepository};

/// Show the best program of a search: its score, the ideas that led to it, the files that it changes
///
/// Works while the search runs: it is the best program so far.
#[derive(Debug, Args)]
pub(in crate::cli) struct BestArgs {
    /// Search directory
    run_dir: PathBuf,

    /// Print its changes against the root as a patch, for `git apply`
    #[arg(long, conflicts_with = "json")]
    patch: bool,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Put the best program of a search into the repository that the search began from
///
/// Changes files only, all of them or none: nothing is staged or committed. Files that were changed
/// since the search began stay as they are where the program does not change them.
#[derive(Debug, Args)]
pub(in crate::cli) struct ApplyArgs {
    /// Search directory
    run_dir: PathBuf,

    /// Node to apply, in place of the best one
    #[arg(long, value_name = "NODE")]
    node: Option<NodeId>,

    /// Directory to change, in place of the repository of the search
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Runs `rollout tree best`.
pub(in crate::cli) async fn best(args: BestArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let manifest = with_search(args.run_dir.clone(), |_, manifest| Ok(manifest)).await?;
    let node = best_node(&manifest);
    if args.json {
        printer.json(&document(&manifest, node, &args.run_dir))?;
        return Ok(ExitCode::Success);
    }
    if node == NodeId::default() {
        printer.hint("nothing is better than the root so far");
    }
    if args.patch {
        let patch = match node == NodeId::default() {
            true => Vec::new(),
            false => changes(&args.run_dir, &manifest, node)?
                .patch()
                .await
                .map_err(|error| unreadable(&error))?,
        };
        match printer.prints_to_terminal() {
            true => printer.data(&escape::block(&String::from_utf8_lossy(&patch)))?,
            false => printer.bytes(&patch).map(drop)?,
        }
        return Ok(ExitCode::Success);
    }
    printer.data(&facts(&manifest, node, printer.out.width))?;
    if node != NodeId::default() {
        let files = changes(&args.run_dir, &manifest, node)?
            .files()
            .await
            .map_err(|error| unreadable(&error))?;
        printer.data(&format!("\n{}", escape::block(&files)))?;
        apply_hint(&args.run_dir, printer);
    }
    Ok(ExitCode::Success)
}

/// Runs `rollout tree apply`.
pub(in crate::cli) async fn apply(
    args: ApplyArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let run_dir = args.run_dir.clone();
    let manifest = with_search(args.run_dir, |_, manifest| Ok(manifest)).await?;
    let node = args.node.unwrap_or_else(|| best_node(&manifest));
    if !manifest.nodes.contains_key(&node) {
        let what = format!("cannot apply node {node}: the search has no such node");
        return Err(CliError::usage(what).hint("`rollout tree show DIR` shows the nodes"));
    }
    if node == NodeId::default() {
        let what = "cannot apply the root: it is what the search began from";
        return Err(CliError::refused(what).hint("nothing is better than the root so far"));
    }
    let target = args.to.or_else(|| repository_of(&run_dir)).ok_or_else(|| {
        let what =
            "cannot apply the program: the search does not say which directory it began from";
        CliError::usage(what).hint("name the directory with `--to DIR`")
    })?;
    let changes = changes(&run_dir, &manifest, node)?;
    let patch = changes.patch().await.map_err(|error| unreadable(&error))?;
    let refused = |error: RepositoryError| {
        let what = format!("cannot apply node {node} to {}", target.display());
        CliError::from_cause(ExitCode::Config, what, &error).hint(
            "no file was changed; go back to the commit that the search began from, or name another \
             directory with `--to`",
        )
    };
    let repository = SourceRepository::open(&target).await.map_err(refused)?;
    repository.apply(patch).await.map_err(refused)?;
    let files = changes.files().await.map_err(|error| unreadable(&error))?;
    printer.data(&escape::block(&files))?;
    printer.note(&format!(
        "node {node} is in {}; nothing is committed",
        quoted(&target.to_string_lossy())
    ));
    Ok(ExitCode::Success)
}

/// Suggests to apply the best program, after a search that has one.
pub(super) fn hint_after_search(manifest: &SearchManifest, run_dir: &Path, printer: &Printer) {
    if !manifest.run_config.dry_run && best_node(manifest) != NodeId::default() {
        let shown = quoted(&run_dir.to_string_lossy());
        printer.hint(&format!("`rollout tree best {shown}` shows the best program"));
        apply_hint(run_dir, printer);
    }
}

fn apply_hint(run_dir: &Path, printer: &Printer) {
    let Some(repository) = repository_of(run_dir) else { return };
    let run_dir = quoted(&run_dir.to_string_lossy());
    printer.hint(&format!(
        "`rollout tree apply {run_dir}` puts the best program into {}",
        repository.display()
    ));
}

/// The directory that a search began from, as its start recorded it.
fn repository_of(run_dir: &Path) -> Option<PathBuf> {
    Invocation::read(run_dir).ok()?.repository
}

/// The best node: the root if nothing was promoted.
fn best_node(manifest: &SearchManifest) -> NodeId {
    best_path(manifest).last().copied().unwrap_or_default()
}

/// The changes of a node against the root.
fn changes(
    run_dir: &Path,
    manifest: &SearchManifest,
    node: NodeId,
) -> Result<SearchChanges, CliError> {
    let commit = &manifest.node(node).commit;
    SearchChanges::open(run_dir, &manifest.root.root_commit, commit)
        .map_err(|error| unreadable(&error))
}

fn unreadable(error: &RepositoryError) -> CliError {
    CliError::from_cause(ExitCode::Failure, "cannot read the program", error)
        .hint("`rollout repair DIR` makes the repository of a search again")
}

/// Names of the ideas on the path to a node.
fn ideas(manifest: &SearchManifest, node: NodeId) -> Vec<String> {
    let chain = manifest.node(node).idea_chain.iter();
    let names = chain.map(|path| path.rsplit('/').next().unwrap_or(path));
    names.map(|name| escape::line(name.trim_end_matches(".md")).into_owned()).collect()
}

fn facts(manifest: &SearchManifest, node: NodeId, width: Option<usize>) -> String {
    let overview = SearchOverview::from_manifest(manifest);
    let found = manifest.node(node);
    let score = overview.best_path.last().and_then(|step| step.rank_score);
    let ideas = ideas(manifest, node);
    let rows = [
        ("node", format!("{node} of depth {}", found.depth)),
        ("commit", found.commit.clone()),
        (
            "score",
            score.map_or_else(|| "-".to_owned(), |score| format!("{score:.6} against the root")),
        ),
        ("ideas", if ideas.is_empty() { "none".to_owned() } else { ideas.join(", ") }),
        ("results", found.baseline_results_csv_path.clone()),
    ];
    let rows = rows
        .into_iter()
        .map(|(key, value)| vec![key.to_owned(), escape::line(&value).into_owned()]);
    format!("{}\n", table::aligned(&[], rows.collect(), 2, width))
}

fn document(manifest: &SearchManifest, node: NodeId, run_dir: &Path) -> Value {
    let overview = SearchOverview::from_manifest(manifest);
    let found = manifest.node(node);
    json!({
        "tree_run_id": manifest.tree_run_id,
        "node": node,
        "depth": found.depth,
        "commit": found.commit,
        "root_commit": manifest.root.root_commit,
        "rank_score": overview.best_path.last().and_then(|step| step.rank_score),
        "ideas": found.idea_chain,
        "results_csv": found.baseline_results_csv_path,
        "repository": repository_of(run_dir),
    })
}
