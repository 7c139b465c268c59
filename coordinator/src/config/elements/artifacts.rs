//! `artifacts`: files to collect from every trial.

use rollout_protocol::artifact::ArtifactType;
use rollout_protocol::spec::task::Artifact;

use super::super::reader::Field;

keys! {
    /// The keys of an artifact.
    pub(crate) table ArtifactKeys {
        source: EnvironmentPath("absolute path"), "required without `changes_of`",
            "File or directory to collect; the entry itself if it is text.";
        changes_of: EnvironmentPath("absolute path"), "none",
            "Directory: keep the changes that the agent makes in it, instead of a `source`.";
        destination: ResultPath("path"), "same as `source`; `workspace-diff` and the path with `changes_of`",
            "Path below the trial's `artifacts`.";
        exclude: Value("list of patterns"), "none", "Files to leave out.";
        service: Value("text"), "main", "Service to collect from.";
        kind as "type": Value("workspace_diff|log|trace|custom"),
            "custom; workspace_diff with `changes_of`",
            "Type in references to it; it changes nothing about the collection.";
    }
}

const TYPES: &[(&str, ArtifactType)] = &[
    ("workspace_diff", ArtifactType::WorkspaceDiff),
    ("log", ArtifactType::Log),
    ("trace", ArtifactType::Trace),
    ("custom", ArtifactType::Custom),
];

/// The artifacts in file order, each a path or a mapping.
pub(crate) fn read(field: &Field<'_>) -> Vec<Artifact> {
    read_of_task(field, &|_| false)
}

/// The artifacts of a task. Its environment may have further absolute paths.
pub(crate) fn read_of_task(field: &Field<'_>, is_absolute: &dyn Fn(&str) -> bool) -> Vec<Artifact> {
    let items = field.items().unwrap_or_default();
    items.iter().filter_map(|item| artifact(item, is_absolute)).collect()
}

fn artifact(item: &Field<'_>, is_absolute: &dyn Fn(&str) -> bool) -> Option<Artifact> {
    if item.is_text() {
        let source = source(item, is_absolute)?;
        return Some(Artifact {
            source,
            destination: None,
            exclude: Vec::new(),
            service: None,
            changes: false,
            artifact_type: ArtifactType::default(),
        });
    }
    let mut fields = item.mapping()?;
    let (from, changes_of) =
        (fields.take(ArtifactKeys::source), fields.take(ArtifactKeys::changes_of));
    let changes = changes_of.is_present();
    if !changes {
        from.required("an absolute path inside the environment, or `changes_of`");
    } else if from.is_present() {
        changes_of.bad_value("either `source` or `changes_of`: an artifact is one of both");
    }
    let destination = destination(&fields.take(ArtifactKeys::destination));
    let exclude = fields.take(ArtifactKeys::exclude).items().unwrap_or_default();
    let exclude = exclude.iter().filter_map(Field::non_empty_string).collect();
    let service = fields.take(ArtifactKeys::service).non_empty_string();
    let kind = fields.take(ArtifactKeys::kind);
    let of_changes = changes.then_some(ArtifactType::WorkspaceDiff);
    let artifact_type = kind.keyword(TYPES).or(of_changes).unwrap_or_default();
    if changes && artifact_type != ArtifactType::WorkspaceDiff {
        kind.bad_value("`workspace_diff`, the type of every artifact with `changes_of`");
    }
    fields.finish();
    let source = source(if changes { &changes_of } else { &from }, is_absolute)?;
    Some(Artifact { source, destination, exclude, service, changes, artifact_type })
}

/// Reads the path of an artifact in the environment. In formats shared with other tools a relative one
/// begins at the root, where these copy it from.
fn source(field: &Field<'_>, is_absolute: &dyn Fn(&str) -> bool) -> Option<String> {
    let path = field.non_empty_string()?;
    let is_good = |path: &str| {
        path.strip_prefix('/').is_some_and(|rest| is_plain(rest.trim_end_matches('/')))
    };
    if is_good(&path) || is_absolute(&path) {
        return Some(path);
    }
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let from_root: String = parts.flat_map(|part| ["/", part]).collect();
    if field.is_shared() && !has_drive(&path) && is_good(&from_root) {
        field.warn(format!("read as `{from_root}`: relative paths begin at the root"));
        return Some(from_root);
    }
    field.bad_value("an absolute path inside the environment, without `.`, `..` or `//`");
    None
}

/// Whether a path begins with a drive of Windows.
pub(crate) fn has_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic())
}

/// A path below the trial's own directory, never outside it.
fn destination(field: &Field<'_>) -> Option<String> {
    let path = field.non_empty_string()?;
    let good = is_plain(path.trim_end_matches('/'));
    if !good {
        field.bad_value("a path below the trial's `artifacts`, without `.`, `..` or a leading `/`");
    }
    good.then_some(path)
}

fn is_plain(path: &str) -> bool {
    !path.chars().any(char::is_control)
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::super::super::diagnostics::ErrorKind;
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn artifact_paths_and_mappings_are_parsed() {
        let text = "[/app/out/, {source: /logs, destination: a/b, exclude: ['*.tmp'], service: db, \
             type: trace}]";
        let (artifacts, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        assert_eq!(artifacts[0].source, "/app/out/");
        assert_eq!(
            artifacts[1],
            Artifact {
                source: "/logs".into(),
                destination: Some("a/b".into()),
                exclude: vec!["*.tmp".into()],
                service: Some("db".into()),
                changes: false,
                artifact_type: ArtifactType::Trace,
            }
        );
    }

    #[test]
    fn artifact_of_changes_has_type_of_workspace_diff() {
        let text =
            "[{changes_of: /app, exclude: [.git]}, {changes_of: /app, type: workspace_diff}]";
        let (artifacts, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        for artifact in &artifacts {
            assert_eq!((artifact.source.as_str(), artifact.changes), ("/app", true));
            assert_eq!(artifact.artifact_type, ArtifactType::WorkspaceDiff);
        }
        assert_eq!(artifacts[0].exclude, [".git"]);
    }

    #[test]
    fn artifact_of_changes_with_contradictory_keys_is_refused() {
        let text = "[{changes_of: /a, source: /a}, {changes_of: /a, type: log}, {changes_of: a}, \
                    {changes_of: /}, {exclude: [x]}, {source: /a, type: workspace_diff}]";
        let bad = |key: &str| (key.to_owned(), ErrorKind::BadValue);
        assert_eq!(
            read_field(text, read).1,
            [
                bad("x[0].changes_of"),
                bad("x[1].type"),
                bad("x[2].changes_of"),
                bad("x[3].changes_of"),
                ("x[4].source".to_owned(), ErrorKind::MissingKey),
            ]
        );
    }

    #[test]
    fn artifact_path_relative_or_with_dotdot_is_refused() {
        let text = "[out, /a/../b, /, {source: /a, destination: ../x}, {destination: b}, 3, \
                    {source: /a, type: hologram}]";
        let bad = |key: &str| (key.to_owned(), ErrorKind::BadValue);
        assert_eq!(
            read_field(text, read).1,
            [
                bad("x[0]"),
                bad("x[1]"),
                bad("x[2]"),
                bad("x[3].destination"),
                ("x[4].source".to_owned(), ErrorKind::MissingKey),
                ("x[5]".to_owned(), ErrorKind::WrongType),
                bad("x[6].type"),
            ]
        );
    }
}
