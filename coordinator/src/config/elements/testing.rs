//! Test helper that reads one element from a YAML snippet.

use std::path::Path;

use super::super::diagnostics::ErrorKind;
use super::super::host_path::HostAccess;
use super::super::keys::{Key, KeyKind};
use super::super::reader::{ConfigReader, Field, Fields, UnknownKeys};
use super::super::yaml;

/// The only key of a snippet.
const TEST_KEY: Key = Key {
    name: "x",
    kind: KeyKind::Value("any"),
    default: "",
    meaning: "For a test.",
    format: None,
};

/// Result of reading: the value, the errors as (key path, kind), the number of warnings.
pub(crate) type ReadOutcome<T> = (T, Vec<(String, ErrorKind)>, usize);

/// Reads fields of a YAML mapping.
pub(crate) fn read_fields<T>(
    text: &str,
    read: impl FnOnce(&mut Fields<'_>) -> T,
) -> ReadOutcome<T> {
    let (root, faults) = yaml::parse(text).expect("valid YAML");
    assert!(faults.is_empty(), "{faults:?}");
    let reader = ConfigReader::new(Path::new("test.yaml"), UnknownKeys::Errors)
        .with_host(HostAccess::Everything);
    let mut fields = reader.root(&root).expect("a mapping");
    let value = read(&mut fields);
    fields.finish();
    let (errors, warnings) = match reader.into_problems().finish(()) {
        Ok(((), warnings)) => (Vec::new(), warnings),
        Err(all) => (all.errors, all.warnings),
    };
    (value, errors.into_iter().map(|e| (e.key, e.kind)).collect(), warnings.len())
}

/// Reads the one field `x` whose YAML text is `text`.
pub(crate) fn read_field<T>(text: &str, read: impl FnOnce(&Field<'_>) -> T) -> ReadOutcome<T> {
    read_fields(&format!("x: {text}\n"), |fields| read(&fields.take(TEST_KEY)))
}

/// Reads agents, without a gateway and with the shipped catalogue.
pub(crate) fn agents(field: &Field<'_>) -> Vec<super::agents::AgentConfig> {
    let catalogue = super::super::catalogue::AgentCatalogue::shipped();
    super::agents::read(field, catalogue, &mut None, Path::new("job.yaml"))
}
