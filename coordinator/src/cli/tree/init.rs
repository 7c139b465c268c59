//! `rollout tree init`: a search file for a repository.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use serde_json::Value;

use crate::cli::error::CliError;
use crate::cli::output::{Printer, quoted};
use crate::config::{ConfigErrors, ConfigWarning, Diagnostics, TreeOptions, read_tree};
use crate::workloads::search::repository::SourceRepository;

/// Name of the file.
const FILE: &str = "tree.yaml";

/// Name of the results of the present commit, beside the file.
const BASELINE_FILE: &str = "baseline.csv";

/// Key of these results, which are measured after the file is written.
const BASELINE: &str = "root_baseline_csv";

/// Write a search file for a repository, in which an agent has the ideas and makes the changes
#[derive(Debug, Args)]
pub(in crate::cli) struct InitArgs {
    /// Directory for tree.yaml, outside the repository: a search refuses uncommitted files there
    dir: PathBuf,

    /// The git repository to improve, or a directory of it
    #[arg(long, value_name = "DIR", default_value = ".")]
    repository: PathBuf,

    /// Agent: `shell`, or one of `rollout agents list`
    #[arg(long, short = 'a', default_value = "shell")]
    agent: String,

    /// Model of the agent
    #[arg(long, short = 'm', value_name = "PROVIDER/MODEL")]
    model: String,

    /// Model server, in place of the provider's
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,

    /// Variable with the key of the server at `--base-url`
    #[arg(long, value_name = "NAME", requires = "base_url")]
    key_env: Option<String>,

    /// Dialect of the server at `--base-url`
    #[arg(long, value_name = "DIALECT", requires = "base_url")]
    dialect: Option<String>,

    /// Command that measures a commit, and writes its results to the file $ROLLOUT_RESULTS_CSV
    #[arg(long, value_name = "COMMAND")]
    sweep: String,

    /// Column of the results that decides
    #[arg(long, value_name = "COLUMN")]
    metric: String,

    /// Which values of the metric are better
    #[arg(long, value_enum, default_value = "higher")]
    direction: Direction,
}

/// The values of a metric that are better.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Direction {
    Higher,
    Lower,
}

/// Writes the file and checks it.
pub(in crate::cli) async fn init(args: InitArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let sweep = quoted(&args.sweep);
    let repository = SourceRepository::open(&args.repository).await;
    repository.map_err(|error| CliError::new(ExitCode::Config, error.to_string()))?;
    let (dir, repository, warnings) = supervise::blocking(move || write(&args)).await?;
    for warning in ConfigWarning::grouped(&warnings) {
        printer.warning(&warning);
    }
    let path = |path: &Path| quoted(&path.display().to_string());
    let (dir, repository, baseline) =
        (path(&dir), path(&repository), path(&dir.join(BASELINE_FILE)));
    printer.hint(&format!(
        "measure the present commit: (cd {repository} && ROLLOUT_RESULTS_CSV={baseline} bash -c {sweep})"
    ));
    printer.hint(&format!("then begin: cd {dir} && rollout tree run {FILE}"));
    Ok(ExitCode::Success)
}

/// Writes the file; returns its directory and the repository as absolute paths, and the warnings.
fn write(args: &InitArgs) -> Result<(PathBuf, PathBuf, Vec<ConfigWarning>), CliError> {
    let cannot = |path: &Path, error: &io::Error| {
        CliError::failure(format!("cannot use the directory {}", path.display()), error)
    };
    let repository = fs::canonicalize(&args.repository);
    let repository = repository.map_err(|error| cannot(&args.repository, &error))?;
    let is_new = !args.dir.exists();
    let made = fs::create_dir_all(&args.dir).and_then(|()| fs::canonicalize(&args.dir));
    let dir = made.map_err(|error| cannot(&args.dir, &error))?;
    if dir.starts_with(&repository) {
        if is_new {
            let _best_effort = fs::remove_dir(&dir);
        }
        let (dir, repository) = (dir.display(), repository.display());
        let why = format!(
            "{dir} is in the repository {repository}, where a search refuses uncommitted files"
        );
        return Err(CliError::new(ExitCode::Config, format!("cannot write a search file: {why}"))
            .hint("choose a directory outside the repository"));
    }
    let text = text(args, &repository.display().to_string());
    let warnings = write_file(&dir.join(FILE), &text)?;
    Ok((dir, repository, warnings))
}

fn write_file(file: &Path, text: &str) -> Result<Vec<ConfigWarning>, CliError> {
    let created = OpenOptions::new().write(true).create_new(true).open(file);
    let written = created.and_then(|mut created| {
        created.write_all(text.as_bytes()).inspect_err(|_| {
            let _best_effort = fs::remove_file(file);
        })
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CliError::new(
            ExitCode::Config,
            format!("cannot write a search file: {} exists", file.display()),
        ),
        _ => CliError::failure(format!("cannot write {}", file.display()), &error),
    })?;
    let checked = check(file);
    if checked.is_err() {
        let _best_effort = fs::remove_file(file);
    }
    Ok(checked?)
}

/// Checks the file, for which keys of models may be set and the baseline measured later.
fn check(file: &Path) -> Result<Vec<ConfigWarning>, ConfigErrors> {
    let is_set = |_: &str| true;
    let mut problems = Diagnostics::default();
    let _tree = read_tree(file, &TreeOptions::for_command_line(&is_set), &mut problems);
    let (errors, warnings) = problems.into_parts();
    let mut checked = Diagnostics::default();
    errors.into_iter().filter(|error| error.key != BASELINE).for_each(|error| checked.error(error));
    warnings.into_iter().for_each(|warning| checked.warning(warning));
    checked.finish(()).map(|((), warnings)| warnings)
}

/// The file. A JSON text is one in YAML, too.
fn text(args: &InitArgs, repository: &str) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let keys = [
        ("agent", Some(&args.agent)),
        ("model", Some(&args.model)),
        ("base_url", args.base_url.as_ref()),
        ("key_env", args.key_env.as_ref()),
        ("dialect", args.dialect.as_ref()),
    ];
    let keys = keys.into_iter().filter_map(|(key, value)| Some((key, quoted(value?))));
    let keys: Vec<_> = keys.map(|(key, value)| format!("{key}: {value}")).collect();
    let agent = format!("{{{}}}", keys.join(", "));
    let direction = match args.direction {
        Direction::Higher => "higher",
        Direction::Lower => "lower",
    };
    let metric = format!("column: {}, direction: {direction}", quoted(&args.metric));
    let (sweep, repository) = (quoted(&args.sweep), quoted(repository));
    format!(
        "\
# An agent has ideas for the repository and makes them; `sweep` measures each change, and the best ones
# are changed further. `rollout keys tree` lists all keys.
repository: {repository}
root_baseline_csv: {BASELINE_FILE}  # the results of `sweep` at HEAD
min_candidate_rows: 1

beam_width: 1      # changes of each depth that are changed further
ideas_per_node: 4
max_depth: 2

profile:
  primary: {{{metric}}}
  metrics: [{{{metric}, weight: 1}}]

# What the agent may use for an idea or a change. For models with a price, `cost` limits the search.
budgets:
  step: {{calls: 100}}

# A sandbox on this host; `docker` with a `docker_image` isolates the commands.
environment: {{type: process}}

# The prompts are shipped; `prompt: FILE` is one of your own.
commands:
  ideas: {agent}
  implement: {agent}
  sweep: {{run: {sweep}}}
"
    )
}
