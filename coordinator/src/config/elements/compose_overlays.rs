//! `environment.extra_docker_compose`: compose files that change the agents' environments.

use std::path::{Path, PathBuf};

use rollout_base::regular_file;
use rollout_base::shown_path::shown;
use rollout_environment::{compose_fault, descriptor};
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use rollout_protocol::spec::environment::ProviderKind;

use super::super::diagnostics::ErrorKind;
use super::super::reader::Field;

/// Most files of a job.
const MAX_FILES: usize = 16;

/// Compose files of a job, in the order in which they are merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComposeOverlays {
    /// The files as written.
    pub paths: Vec<PathBuf>,
    /// Their texts.
    pub texts: Vec<String>,
}

/// Reads the files for environments of a provider; relative paths begin where the job `file` is. Errors
/// are recorded.
pub(super) fn read(field: &Field<'_>, kind: Option<ProviderKind>, file: &Path) -> ComposeOverlays {
    let items = field.items().unwrap_or_default();
    let mut overlays = ComposeOverlays::default();
    if items.is_empty() {
        return overlays;
    }
    let descriptor = kind.map(descriptor::for_kind);
    let capabilities = descriptor.map(|descriptor| (descriptor.name, &descriptor.capabilities));
    if let Some((name, capabilities)) = capabilities
        && let Some(why) = capabilities.compose_overlays.unsupported_reason()
    {
        let found = format!("compose files; {why}");
        let expected = format!("what the environment `{name}` supports");
        field.reject(ErrorKind::Unsupported, found, expected);
        return overlays;
    }
    if items.len() > MAX_FILES {
        let found = format!("{} files", items.len());
        field.reject(ErrorKind::BadValue, found, format!("at most {MAX_FILES}"));
        return overlays;
    }
    let base = file.parent().unwrap_or(Path::new(""));
    for item in items {
        let Some(path) = item.path() else { continue };
        match regular_file::read_text(&base.join(&path), CONFIG_FILE_BYTES) {
            Ok(text) => {
                if let Some(why) = compose_fault(&text) {
                    let found = format!("`{}`, which cannot be used: {why}", shown(&path));
                    item.reject(ErrorKind::BadValue, found, "a compose file");
                }
                overlays.paths.push(path);
                overlays.texts.push(text);
            }
            Err(error) => {
                let found = format!("a file that cannot be read: {error}");
                item.reject(ErrorKind::Unreadable, found, "a compose file");
            }
        }
    }
    overlays
}

#[cfg(test)]
mod tests {
    use super::super::environment::EnvironmentKeys;
    use super::super::testing::{ReadOutcome, read_fields};
    use super::*;

    const KEY: &str = "extra_docker_compose";

    fn overlays(kind: ProviderKind, names: &str, dir: &Path) -> ReadOutcome<ComposeOverlays> {
        read_fields(&format!("{KEY}: {names}\n"), |fields| {
            let field = fields.take(EnvironmentKeys::extra_docker_compose);
            read(&field, Some(kind), &dir.join("job.yaml"))
        })
    }

    #[test]
    fn files_are_read_in_their_order_beside_the_job_file() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["a.yaml", "b.yaml"] {
            let text = format!("services: {{{}: {{image: x}}}}\n", &name[..1]);
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let (found, faults, _) = overlays(ProviderKind::Docker, "[b.yaml, a.yaml]", dir.path());
        assert_eq!(faults, []);
        assert_eq!(found.paths, ["b.yaml", "a.yaml"].map(PathBuf::from));
        assert!(found.texts[0].contains("{b: ") && found.texts[1].contains("{a: "), "{found:?}");
    }

    #[test]
    fn files_that_no_environment_can_use_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("list.yaml"), "- a\n").expect("written");
        let item = |kind| vec![(format!("{KEY}[0]"), kind)];
        let docker = |names| overlays(ProviderKind::Docker, names, dir.path()).1;
        assert_eq!(docker("[absent.yaml]"), item(ErrorKind::Unreadable));
        assert_eq!(docker("[list.yaml]"), item(ErrorKind::BadValue));
        for kind in [ProviderKind::Process, ProviderKind::Kubernetes] {
            let (_, found, _) = overlays(kind, "[list.yaml]", dir.path());
            assert_eq!(found, [(KEY.to_owned(), ErrorKind::Unsupported)]);
        }
    }
}
