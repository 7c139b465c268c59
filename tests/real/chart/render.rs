//! Charts as Helm renders them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use regex::Regex;
use rollout_tests::project::repository;
use rollout_tests::python;
use serde::Deserialize;
use serde_json::Value;

/// Values that the tests render the chart with: files `<name>-values.yaml` in `charts/rollout/ci`.
pub(crate) const CASES: [&str; 4] = ["minimal", "nats", "external", "server"];

/// Directory of the chart.
pub(crate) fn chart() -> PathBuf {
    repository().join("charts/rollout")
}

/// The chart with one file of values.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Rendered {
    Manifests {
        /// Text by template.
        manifests: BTreeMap<String, String>,
        /// Warnings and errors of `helm lint`.
        findings: Vec<String>,
    },
    Refused {
        /// Helm's message.
        error: String,
    },
}

/// The chart with one of [`CASES`].
#[derive(Debug)]
pub(crate) struct Case {
    /// Name of the values.
    pub(crate) name: &'static str,
    /// Text by template, without random passwords.
    pub(crate) manifests: BTreeMap<String, String>,
    /// Warnings and errors of `helm lint`.
    pub(crate) findings: Vec<String>,
}

impl Case {
    /// Every object, in the order of the templates.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let yaml = self.manifests.iter().filter(|(name, _)| name.ends_with(".yaml"));
        yaml.flat_map(|(name, text)| objects(name, text)).collect()
    }

    /// The objects of a kind.
    pub(crate) fn of_kind(&self, kind: &str) -> Vec<Value> {
        self.objects().into_iter().filter(|object| object["kind"] == kind).collect()
    }

    /// The object of a kind and a name.
    #[track_caller]
    pub(crate) fn object(&self, kind: &str, name: &str) -> Value {
        let mut found = self.of_kind(kind).into_iter();
        let object = found.find(|object| object["metadata"]["name"] == name);
        object.unwrap_or_else(|| panic!("{}: no {kind} {name}", self.name))
    }
}

/// The documents of a YAML text; empty ones are left out.
fn objects(name: &str, text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n").map(|text| text.trim_start_matches("---\n"));
    let read = |text: &str| -> Value {
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"))
    };
    let has_content =
        |text: &&str| text.lines().any(|line| !line.is_empty() && !line.starts_with('#'));
    documents.filter(has_content).map(read).collect()
}

/// Renders the chart with files of values, by a Python with Helm.
fn render(python: &Path, files: &[&Path]) -> Vec<Rendered> {
    let script = repository().join("tests/real/chart/helm.py");
    let output =
        Command::new(python).arg(script).arg(chart()).args(files).output().expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Renders the chart with a text of values; without Helm, the test is ignored.
pub(crate) fn render_text(values: &str) -> Option<Rendered> {
    let python = python::with_helm()?;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), values).expect("written");
    Some(render(&python, &[file.path()]).remove(0))
}

/// The chart with each of [`CASES`], rendered once; none without Helm, and the test is ignored.
pub(crate) fn cases() -> &'static [Case] {
    static CASES_RENDERED: OnceLock<Vec<Case>> = OnceLock::new();
    let Some(python) = python::with_helm() else { return &[] };
    CASES_RENDERED.get_or_init(|| {
        let files = CASES.map(|name| chart().join(format!("ci/{name}-values.yaml")));
        let rendered = render(&python, &files.each_ref().map(PathBuf::as_path));
        let case = |(name, rendered): (&'static str, Rendered)| match rendered {
            Rendered::Manifests { manifests, findings } => Case {
                name,
                manifests: manifests.into_iter().map(|(k, v)| (k, without_passwords(&v))).collect(),
                findings,
            },
            Rendered::Refused { error } => panic!("{name}: {error}"),
        };
        CASES.into_iter().zip(rendered).map(case).collect()
    })
}

/// Replaces random passwords and tokens, which have 40 letters and digits, and digests of them.
fn without_passwords(text: &str) -> String {
    let password = r#"((?:password|token): "|cluster:)[A-Za-z0-9]{40}\b"#;
    let password = Regex::new(password).expect("a pattern");
    let digest = Regex::new(r#"sha256 = "[0-9a-f]{64}""#).expect("a pattern");
    let text = password.replace_all(text, "${1}<password>");
    digest.replace_all(&text, "sha256 = \"<digest>\"").into_owned()
}

#[test]
fn chart_renders_as_reviewed() {
    for case in cases() {
        let text: String = case
            .manifests
            .iter()
            .filter(|(_, text)| !text.trim().is_empty())
            .map(|(name, text)| format!("# {name}\n{}\n\n", text.trim()))
            .collect();
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(case.name, text));
    }
}

#[test]
fn chart_has_no_findings_of_helm_lint() {
    for case in cases() {
        assert_eq!(case.findings, Vec::<String>::new(), "{}", case.name);
    }
}

#[test]
fn chart_values_that_lack_something_are_refused_with_reason() {
    for (values, reason) in [
        ("{}", "set `store.url`"),
        ("store: {url: /blobs}", "/store/url"),
        ("store: {url: 's3://b/p'}\nworker: {slotz: 1}", "'slotz' not allowed"),
        ("store: {url: 's3://b/p'}\nnats: {enabled: false}", "set `nats.url`"),
        ("store: {url: 's3://b/p'}\nnats: {replicas: 2}", "/nats/replicas"),
        ("store: {url: 's3://b/p'}\nnats: {auth: {method: none}}", "`nats.enabled: false`"),
        ("store: {url: 's3://b/p'}\nnats: {auth: {workerSecret: a}}", "or none"),
        (
            "store: {url: 's3://b/p'}\ncoordinator: {job: {enabled: true}}",
            "coordinator.job.existingConfigMap",
        ),
    ] {
        match render_text(values) {
            None => return,
            Some(Rendered::Refused { error }) => {
                assert!(error.contains(reason), "{values}: {error}");
            }
            Some(Rendered::Manifests { .. }) => panic!("accepted: {values}"),
        }
    }
}
