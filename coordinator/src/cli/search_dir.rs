//! Refusal of a search's directory by commands that need the directory of a job.

use std::path::Path;

use rollout_engine::journal::RunLayout;

use super::error::CliError;
use super::output::quoted;

/// Refuses the directory of a search. `action` is what the command does, an infinitive; `hint` says
/// what to use instead, with `DIR` for the directory.
pub(super) fn refuse(action: &str, directory: &Path, hint: &str) -> Result<(), CliError> {
    if !RunLayout::is_search(directory) {
        return Ok(());
    }
    let shown = directory.display();
    let message = format!("cannot {action} `{shown}`: it is the directory of a search");
    let hint = hint.replace("DIR", &quoted(&directory.to_string_lossy()));
    Err(CliError::usage(message).hint(&hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_directory_is_refused_by_commands_for_jobs() {
        let temp = tempfile::tempdir().expect("a directory");
        std::fs::write(temp.path().join("manifest.json"), "{}").expect("writable");
        assert!(refuse("export", temp.path(), "use another command").is_ok());
        std::fs::write(temp.path().join("engine.json"), "{}").expect("writable");
        let refused = refuse("export", temp.path(), "use `x DIR`").expect_err("a search");
        assert!(refused.message.ends_with("it is the directory of a search"), "{refused:?}");
        assert_eq!(refused.hints, [format!("use `x {}`", temp.path().display())]);
    }
}
