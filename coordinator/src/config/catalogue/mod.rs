//! The catalogue: agents by name as data, each in a TOML file with its scripts, and the providers of
//! models.
//!
//! An entry becomes an agent with scripts when a job is read, so that a run keeps the scripts that
//! it began with, and workers need no catalogue.

mod entry;
#[cfg(test)]
mod install_tests;
mod prices;
mod providers;
mod session;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rollout_base::regular_file;
use rollout_base::shown_path::shown;
use rollout_protocol::limits::CONFIG_FILE_BYTES;

pub(crate) use self::entry::AgentChoices;
pub use self::entry::{AgentEntry, AgentOption, InvalidEntry};
pub(crate) use self::prices::PriceTable;
pub use self::providers::{ModelProvider, ModelServer, find_provider, provider_names};
pub use self::session::SessionEntry;
pub(crate) use self::session::session_fault;

/// The shipped entries, by file name.
const SHIPPED: &[(&str, &str)] = &[
    ("aider.toml", include_str!("../../../agents/aider.toml")),
    ("claude-code.toml", include_str!("../../../agents/claude-code.toml")),
    ("cline.toml", include_str!("../../../agents/cline.toml")),
    ("codex.toml", include_str!("../../../agents/codex.toml")),
    ("copilot-cli.toml", include_str!("../../../agents/copilot-cli.toml")),
    ("cursor-cli.toml", include_str!("../../../agents/cursor-cli.toml")),
    ("gemini-cli.toml", include_str!("../../../agents/gemini-cli.toml")),
    ("goose.toml", include_str!("../../../agents/goose.toml")),
    ("gptme.toml", include_str!("../../../agents/gptme.toml")),
    ("mini-swe-agent.toml", include_str!("../../../agents/mini-swe-agent.toml")),
    ("opencode.toml", include_str!("../../../agents/opencode.toml")),
    ("openhands.toml", include_str!("../../../agents/openhands.toml")),
    ("pi.toml", include_str!("../../../agents/pi.toml")),
    ("qwen-code.toml", include_str!("../../../agents/qwen-code.toml")),
    ("swe-agent.toml", include_str!("../../../agents/swe-agent.toml")),
];

static SHIPPED_CATALOGUE: LazyLock<AgentCatalogue> = LazyLock::new(|| {
    let entries = SHIPPED.iter().map(|(file, text)| {
        let entry = AgentEntry::parse(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        (entry.name.clone(), entry)
    });
    AgentCatalogue { entries: entries.collect() }
});

/// Agents by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentCatalogue {
    entries: BTreeMap<String, AgentEntry>,
}

/// Why a directory of entries cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The directory or a file cannot be read.
    #[error("cannot read {}", shown(path))]
    Read {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// An entry is invalid.
    #[error("cannot use the agent in {}: {source}", shown(path))]
    Entry {
        /// Path of the file.
        path: PathBuf,
        /// Its error.
        source: InvalidEntry,
    },
    /// Two files of the directory have entries with one name.
    #[error("{} has a second agent `{name}`", shown(path))]
    Duplicate {
        /// Path of the second file.
        path: PathBuf,
        /// The name.
        name: String,
    },
}

impl AgentCatalogue {
    /// The shipped agents.
    pub fn shipped() -> &'static Self {
        &SHIPPED_CATALOGUE
    }

    /// The shipped agents, and those of the `*.toml` files of a directory, which win.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub fn with_directory(directory: &Path) -> Result<Self, CatalogueError> {
        let read = |path: &Path| {
            let path = path.to_owned();
            move |source| CatalogueError::Read { path, source }
        };
        let mut own = BTreeMap::new();
        let mut files = Vec::new();
        for file in fs::read_dir(directory).map_err(read(directory))? {
            let path = file.map_err(read(directory))?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                files.push(path);
            }
        }
        files.sort();
        for path in files {
            let text = regular_file::read_text(&path, CONFIG_FILE_BYTES).map_err(read(&path))?;
            let entry = AgentEntry::parse(&text)
                .map_err(|source| CatalogueError::Entry { path: path.clone(), source })?;
            let name = entry.name.clone();
            if own.insert(name.clone(), entry).is_some() {
                return Err(CatalogueError::Duplicate { path, name });
            }
        }
        let mut catalogue = Self::shipped().clone();
        catalogue.entries.extend(own);
        Ok(catalogue)
    }

    /// The agent with this name.
    pub fn find(&self, name: &str) -> Option<&AgentEntry> {
        self.entries.get(name)
    }

    /// The agents, by name.
    pub fn entries(&self) -> impl Iterator<Item = &AgentEntry> {
        self.entries.values()
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::agent::AgentKind;

    use super::*;

    #[test]
    fn shipped_entries_are_valid_and_named_as_their_files() {
        let names: Vec<_> = AgentCatalogue::shipped().entries().map(|entry| &entry.name).collect();
        let files: Vec<_> =
            SHIPPED.iter().map(|(file, _)| file.trim_end_matches(".toml")).collect();
        assert_eq!(names, files);
    }

    #[test]
    fn every_file_of_the_directory_is_shipped() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("agents");
        let mut files: Vec<_> = fs::read_dir(directory)
            .expect("a directory")
            .map(|file| file.expect("a file").file_name().into_string().expect("a name"))
            .filter(|name| name.ends_with(".toml"))
            .filter(|name| !["prices.toml", "providers.toml"].contains(&name.as_str()))
            .collect();
        files.sort();
        assert_eq!(files, SHIPPED.iter().map(|(file, _)| *file).collect::<Vec<_>>());
    }

    /// The arguments that the script of an agent gives its program, one a line. `begin` is the beginning of
    /// the command in the script.
    fn arguments(agent: &str, begin: &str, home: &Path, variables: &[(&str, &str)]) -> String {
        let instruction = home.join("instruction.md");
        fs::write(&instruction, "do it").expect("written");
        let entry = AgentCatalogue::shipped().find(agent).expect("an agent");
        let AgentKind::Script { execute: Some(script), .. } = entry.scripts() else {
            panic!("{agent} has no script");
        };
        assert!(script.contains(begin), "{script}");
        let mut script = script.replace(begin, "printf '%s\\n' ").replace("/tmp/", "$HOME/");
        // Of cline: it writes logs, and ends processes.
        for directory in ["/logs/", "/proc/"] {
            script = script.replace(directory, &format!("$HOME{directory}"));
        }
        let shown = std::process::Command::new("bash")
            .args(["-c", &script])
            .env("HOME", home)
            .env("PI_CODING_AGENT_DIR", home)
            .env("ROLLOUT_TASK_INSTRUCTION", &instruction)
            .envs([("ROLLOUT_MODEL", "m"), ("ROLLOUT_MODEL_DIALECT", "anthropic")])
            .envs(variables.iter().copied())
            .output()
            .expect("bash");
        assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
        String::from_utf8_lossy(&shown.stdout).into_owned()
    }

    #[test]
    fn effort_and_most_turns_are_arguments_of_the_agents_program() {
        let home = tempfile::tempdir().expect("a directory");
        let home = home.path();
        let effort = ("ROLLOUT_EFFORT", "high");
        let turns = ("ROLLOUT_MAX_TURNS", "7");
        let claude = arguments("claude-code", "exec claude ", home, &[effort, turns]);
        assert!(claude.contains("\n--effort\nhigh\n--max-turns\n7\n"), "{claude}");
        let plain = arguments("claude-code", "exec claude ", home, &[]);
        assert!(!plain.contains("--effort") && !plain.contains("--max-turns"), "{plain}");
        let copilot = arguments("copilot-cli", "exec copilot ", home, &[effort]);
        assert!(copilot.contains("\n--effort\nhigh\n"), "{copilot}");
        let cline = arguments("cline", "cline ", home, &[effort, ("OPENAI_API_KEY", "k")]);
        assert!(cline.contains("\n-m\nm\n--thinking\nhigh\ndo it\n"), "{cline}");
        let plain = arguments("cline", "cline ", home, &[]);
        assert!(!plain.contains("--thinking"), "{plain}");
        let goose = arguments("goose", "exec goose ", home, &[turns]);
        assert!(goose.contains("\n--max-turns\n7\n"), "{goose}");
        let pi = arguments("pi", "pi --mode ", home, &[effort]);
        assert!(pi.contains("\n--thinking\nhigh\n"), "{pi}");
        let models = fs::read_to_string(home.join("models.json")).expect("written");
        assert!(models.contains(r#"[{"id":"m","reasoning":true}]"#), "{models}");
    }

    #[test]
    fn directory_replaces_and_adds_agents() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |file: &str, text: &str| {
            fs::write(directory.path().join(file), text).expect("written");
        };
        write("a.toml", "name = 'codex'\nsummary = 's'\nexecute = 'true'\n");
        write("b.toml", "name = 'mine'\nsummary = 's'\nexecute = 'true'\n");
        write("notes.txt", "no entry");
        let catalogue = AgentCatalogue::with_directory(directory.path()).expect("a catalogue");
        assert_eq!(catalogue.find("codex").map(|entry| entry.summary.as_str()), Some("s"));
        assert!(catalogue.find("mine").is_some() && catalogue.find("claude-code").is_some());

        write("c.toml", "name = 'mine'\nsummary = 's'\nexecute = 'true'\n");
        let error = AgentCatalogue::with_directory(directory.path()).expect_err("two of a name");
        assert!(error.to_string().ends_with("c.toml has a second agent `mine`"), "{error}");
        write("c.toml", "name = 'mine'\nrun = 'true'\n");
        let error = AgentCatalogue::with_directory(directory.path()).expect_err("an unknown key");
        assert!(error.to_string().contains("unknown field `run`"), "{error}");
        let missing = directory.path().join("missing");
        let error = AgentCatalogue::with_directory(&missing).expect_err("no directory");
        assert!(matches!(error, CatalogueError::Read { .. }), "{error}");
    }
}
