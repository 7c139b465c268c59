//! `datasets` of a job file.

use std::path::PathBuf;

use super::super::fields::{Field, Spot};
use super::super::problem::ErrorKind;
use super::names;

/// A local dataset as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRef {
    /// Path as written; relative ones count from the job file's directory.
    pub path: PathBuf,
    /// Name to use instead of the directory's.
    pub name: Option<String>,
    /// Version, for people.
    pub version: Option<String>,
    /// Where the path stands.
    pub spot: Spot,
}

/// The datasets, in the order of the file.
pub(crate) fn read(field: &Field<'_>) -> Vec<DatasetRef> {
    const EXPECTED: &str = "a list of at least one dataset";
    if !field.required(EXPECTED) {
        return Vec::new();
    }
    let Some(items) = field.items() else { return Vec::new() };
    if items.is_empty() {
        field.reject(ErrorKind::BadValue, "an empty list", EXPECTED);
    }
    items.iter().filter_map(dataset).collect()
}

fn dataset(item: &Field<'_>) -> Option<DatasetRef> {
    let mut fields = item.mapping()?;
    let path = fields.take("path");
    let registry = fields.take("registry");
    let name = names::read(&fields.take("name"));
    let version = fields.take("version").text();
    fields.finish();
    if registry.is_present() {
        let expected = "`path`, a local directory";
        let found = "a registry; registries are not available yet";
        registry.reject(ErrorKind::Unavailable, found, expected);
        return None;
    }
    if !path.required("the directory of a dataset or of one task") {
        return None;
    }
    Some(DatasetRef { path: path.name()?.into(), name, version, spot: path.spot() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn every_fault_is_found() {
        let text = "[{path: ./a, name: b, version: 1.0}, {registry: {url: x}, name: n}, {name: x}, {path: 1, verison: 2}]";
        let (datasets, faults, _) = read_field(text, read);
        assert_eq!(
            faults,
            [
                ("x[1].registry".to_owned(), ErrorKind::Unavailable),
                ("x[2].path".to_owned(), ErrorKind::MissingKey),
                ("x[3].verison".to_owned(), ErrorKind::UnknownKey),
                ("x[3].path".to_owned(), ErrorKind::WrongType),
            ]
        );
        assert_eq!(datasets.len(), 1);
        assert_eq!(datasets[0].version.as_deref(), Some("1.0"));
    }
}
