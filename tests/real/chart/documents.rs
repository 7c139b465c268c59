//! Commands in documents: values that they set exist.

use std::fs;

use regex::Regex;
use rollout_tests::project::repository;
use serde_json::Value;

use crate::chart::render::{Rendered, chart, render_text};

#[test]
fn values_in_documents_exist() {
    let values = fs::read_to_string(chart().join("values.yaml")).expect("readable");
    let values: Value = serde_saphyr::from_str(&values).expect("YAML");
    // `--set worker.tag=1` and `nats.enabled`: a path that begins with a table of the values.
    let tables: Vec<&str> =
        values.as_object().expect("a table").keys().map(String::as_str).collect();
    // A type of a secret (`kubernetes.io/tls`) is none.
    let pattern =
        format!(r"(?:--set |`)((?:{})(?:\.[a-zA-Z]+)+)(?:[^a-zA-Z./]|$)", tables.join("|"));
    let pattern = Regex::new(&pattern).expect("a pattern");
    let mut seen = 0;
    for name in ["docs/deployment.md", "charts/rollout/README.md"] {
        let text = fs::read_to_string(repository().join(name)).expect("readable");
        let paths = pattern.captures_iter(&text).map(|found| found[1].to_owned());
        // Options of the provider are checked by the worker that reads them.
        for path in paths.filter(|path| !path.starts_with("kubernetes.options.")) {
            let found = path.split('.').try_fold(&values, |value, key| value.get(key));
            assert!(found.is_some(), "{name}: no value `{path}`");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen} values");
}

#[test]
fn values_in_deployment_document_are_accepted() {
    let text = fs::read_to_string(repository().join("docs/deployment.md")).expect("readable");
    let values = text.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    if let Some(Rendered::Refused { error }) = render_text(values.expect("an example")) {
        panic!("{error}");
    }
}
