//! The values of the chart: every one is described, allowed by the schema, and in the README.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::chart::render::{CASES, chart};

/// Beginning of the description of a value.
const DESCRIPTION: &str = "# -- ";

/// Lines of the README between which the table is.
const TABLE: [&str; 2] = ["<!-- values -->", "<!-- end of values -->"];

fn read(name: &str) -> String {
    fs::read_to_string(chart().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A value of the chart, by its path: `worker.replicas`.
#[derive(Debug)]
struct ChartValue {
    path: String,
    description: Option<String>,
}

/// The values of `values.yaml` in its order: keys with a description, and those above others.
fn chart_values() -> Vec<ChartValue> {
    let (mut values, mut above, mut description) = (Vec::new(), Vec::<String>::new(), None);
    let mut described_depth = None;
    for line in read("values.yaml").lines() {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 2;
        if let Some(found) = text.strip_prefix(DESCRIPTION) {
            description = Some(found.to_owned());
        }
        let Some((key, _)) = text.split_once(':').filter(|_| !text.starts_with(['#', '-'])) else {
            continue;
        };
        // Keys below a described value are part of its default.
        if described_depth.is_some_and(|outer| depth > outer) {
            continue;
        }
        above.truncate(depth);
        above.push(key.to_owned());
        described_depth = description.is_some().then_some(depth);
        values.push(ChartValue { path: above.join("."), description: description.take() });
    }
    values
}

/// The default of a value.
fn default_of<'a>(values: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(values, |value, key| &value[key])
}

/// Described paths with their defaults.
fn described() -> Vec<(String, String, Value)> {
    let defaults = yaml("values.yaml");
    let row = |value: ChartValue| {
        let default = default_of(&defaults, &value.path).clone();
        Some((value.path, value.description?, default))
    };
    chart_values().into_iter().filter_map(row).collect()
}

fn table() -> String {
    let mut table = "| Value | Default | Meaning |\n| --- | --- | --- |\n".to_owned();
    for (path, description, default) in described() {
        let default = default.to_string().replace('|', "\\|");
        table.push_str(&format!("| `{path}` | `{default}` | {description} |\n"));
    }
    table
}

#[test]
fn values_are_all_described() {
    let values = chart_values();
    assert!(values.len() > 80, "{}", values.len());
    for ChartValue { path, description } in &values {
        let is_table = values.iter().any(|other| other.path.starts_with(&format!("{path}.")));
        assert_eq!(description.is_none(), is_table, "{path}: describe it with `{DESCRIPTION}`");
        let ends = description.as_deref().is_none_or(|text| text.ends_with('.'));
        assert!(ends, "{path}: a sentence");
    }
    let mut leaves = BTreeMap::new();
    for (path, _, default) in described() {
        assert!(leaves.insert(path.clone(), default).is_none(), "{path} is there twice");
    }
}

#[test]
fn schema_has_every_value_and_no_other() {
    let schema: Value = serde_json::from_str(&read("values.schema.json")).expect("JSON");
    let mut found = Vec::new();
    properties(&schema, "", &mut found);
    // Helm sets `global`.
    found.retain(|path| path != "global");
    found.sort_unstable();
    let mut expected: Vec<String> = chart_values().into_iter().map(|value| value.path).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Paths of all properties; every table with properties refuses others.
fn properties(schema: &Value, path: &str, found: &mut Vec<String>) {
    let Some(inner) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{path}");
    for (key, schema) in inner {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        properties(schema, &path, found);
        found.push(path);
    }
}

#[test]
fn readme_has_table_of_values() {
    let readme = read("README.md");
    let [begin, end] = TABLE;
    let (before, rest) = readme.split_once(&format!("{begin}\n")).expect("the table's beginning");
    let (found, after) = rest.split_once(end).expect("the table's end");
    let expected = format!("\n{}\n", table());
    if found != expected && std::env::var("INSTA_UPDATE").as_deref() == Ok("always") {
        let text = format!("{before}{begin}\n{expected}{end}{after}");
        fs::write(chart().join("README.md"), text).expect("written");
        return;
    }
    assert_eq!(found, expected, "write it anew with INSTA_UPDATE=always, and review it");
}

#[test]
fn files_of_values_are_all_rendered() {
    let mut found: Vec<String> = fs::read_dir(chart().join("ci"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    found.sort_unstable();
    let mut expected = CASES.map(|name| format!("{name}-values.yaml"));
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn chart_has_version_of_program() {
    let chart = yaml("Chart.yaml");
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        chart["version"],
        env!("CARGO_PKG_VERSION"),
        "chart and program are released together"
    );
}
