//! The output of a harness, `trial_output_v1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::TrialIds;
use super::json_object::{FieldError, JsonObject};
use crate::limits;

/// Name of the schema.
const SCHEMA: &str = "trial_output_v1";

/// Type of the error of a harness that left no valid output.
const PROCESS_ERROR: &str = "harness_process_error";

/// The output of a trial. Its free parts (`answer`, `ext`) stay in the document.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialOutput {
    /// The trial, as the harness states it.
    pub ids: TrialIds,
    /// How the attempt ended.
    pub outcome: HarnessOutcome,
    /// The number to compare by.
    pub objective: Option<Objective>,
    /// Metrics within the limits.
    pub metrics: BTreeMap<String, MetricValue>,
    /// Number of metrics beyond the limits: too many, long names, long texts.
    pub metrics_left_out: u64,
    /// Files that it names as artifacts.
    pub artifacts: Vec<OutputFileRef>,
    /// Files that it names as checkpoints.
    pub checkpoints: Vec<OutputCheckpoint>,
    /// The error.
    pub error: Option<OutputError>,
}

/// How an attempt ended, according to the harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HarnessOutcome {
    /// It succeeded.
    Success,
    /// It did not succeed.
    Failure,
    /// There is no answer.
    Missing,
    /// The harness failed.
    Error,
}

impl HarnessOutcome {
    const NAMES: &[(&'static str, Self)] = &[
        ("success", Self::Success),
        ("failure", Self::Failure),
        ("missing", Self::Missing),
        ("error", Self::Error),
    ];

    /// The word in documents and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Missing => "missing",
            Self::Error => "error",
        }
    }
}

/// The number that trials are compared by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Whether a larger or a smaller one is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<ObjectiveDirection>,
}

/// Which value of an objective is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveDirection {
    /// A larger one.
    Maximize,
    /// A smaller one.
    Minimize,
}

impl ObjectiveDirection {
    const NAMES: &[(&'static str, Self)] =
        &[("maximize", Self::Maximize), ("minimize", Self::Minimize)];

    /// The word in documents and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Maximize => "maximize",
            Self::Minimize => "minimize",
        }
    }
}

/// The value of a metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricValue {
    /// No value.
    Null,
    /// True or false.
    Bool(bool),
    /// A finite number.
    Number(f64),
    /// Text.
    Text(String),
}

/// A file that an output names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFileRef {
    /// Its path in the environment.
    pub path: String,
    /// Its name for people.
    pub logical_name: Option<String>,
    /// Its media type.
    pub mime_type: Option<String>,
}

/// A checkpoint that an output names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputCheckpoint {
    /// Its path in the environment.
    pub path: String,
    /// Its name for people.
    pub logical_name: Option<String>,
    /// The step after which it was saved.
    pub step: Option<u64>,
    /// The epoch after which it was saved.
    pub epoch: Option<u64>,
}

/// The error of an output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputError {
    /// Its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Its text; at most [`limits::HARNESS_ERROR_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Why bytes are not an output document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrialOutputError {
    /// It exceeds [`limits::TRIAL_OUTPUT_BYTES`].
    #[error("it has more than {} bytes", limits::TRIAL_OUTPUT_BYTES)]
    TooLong,
    /// It is not a JSON object.
    #[error("it is not a JSON object: {0}")]
    NotAnObject(String),
    /// It breaks the schema.
    #[error("{0}")]
    Schema(#[from] FieldError),
}

impl TrialOutput {
    /// Parses a document.
    ///
    /// # Errors
    /// [`TrialOutputError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, TrialOutputError> {
        if bytes.len() as u64 > limits::TRIAL_OUTPUT_BYTES {
            return Err(TrialOutputError::TooLong);
        }
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| TrialOutputError::NotAnObject(error.to_string()))?;
        let Value::Object(map) = &value else {
            return Err(TrialOutputError::NotAnObject("it is another value".to_owned()));
        };
        Ok(output(&JsonObject::document(map))?)
    }

    /// The output that stands for a harness that left no valid one, and why.
    pub fn process_error(ids: TrialIds, message: impl Into<String>) -> Self {
        let message = limits::shorten(message.into(), limits::HARNESS_ERROR_BYTES);
        let error =
            OutputError { error_type: Some(PROCESS_ERROR.to_owned()), message: Some(message) };
        Self {
            ids,
            outcome: HarnessOutcome::Error,
            objective: None,
            metrics: BTreeMap::new(),
            metrics_left_out: 0,
            artifacts: Vec::new(),
            checkpoints: Vec::new(),
            error: Some(error),
        }
    }

    /// A document with ids, outcome and error, for an output that has no document.
    pub fn to_document(&self) -> Vec<u8> {
        let mut document =
            json!({ "schema_version": SCHEMA, "ids": self.ids, "outcome": self.outcome });
        if let Some(error) = &self.error {
            document["error"] = json!(error);
        }
        format!("{document}\n").into_bytes()
    }
}

/// The last line of a harness's standard output that is not empty.
pub fn last_line(stdout: &str) -> Option<&str> {
    stdout.lines().map(str::trim).rfind(|line| !line.is_empty())
}

fn output(document: &JsonObject<'_>) -> Result<TrialOutput, FieldError> {
    document.required_word("schema_version", &[(SCHEMA, ())])?;
    if document.value("answer").is_some_and(|answer| {
        !matches!(answer, Value::String(_) | Value::Object(_) | Value::Array(_))
    }) {
        return Err(document.invalid("answer", "text, an object or a list"));
    }
    let (metrics, metrics_left_out) = metrics(document)?;
    Ok(TrialOutput {
        ids: TrialIds::read(document)?,
        outcome: document.required_word("outcome", HarnessOutcome::NAMES)?,
        objective: document.object("objective")?.map(|object| objective(&object)).transpose()?,
        metrics,
        metrics_left_out,
        artifacts: document.objects("artifacts")?.iter().map(artifact).collect::<Result<_, _>>()?,
        checkpoints: document
            .objects("checkpoints")?
            .iter()
            .map(checkpoint)
            .collect::<Result<_, _>>()?,
        error: document.object("error")?.map(|object| error(&object)).transpose()?,
    })
}

/// Whether a name can be kept.
fn is_kept_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= limits::HARNESS_NAME_BYTES && !name.contains(char::is_control)
}

fn objective(object: &JsonObject<'_>) -> Result<Objective, FieldError> {
    let name = object.required_text("name")?;
    if !is_kept_name(name) {
        let most = limits::HARNESS_NAME_BYTES;
        let expected = format!("a name of 1 to {most} bytes without control characters");
        return Err(object.invalid("name", expected));
    }
    Ok(Objective {
        name: name.to_owned(),
        value: object.number("value")?.ok_or_else(|| object.missing("value"))?,
        direction: object.word("direction", ObjectiveDirection::NAMES)?,
    })
}

/// The metrics within the limits, and the number of others.
fn metrics(document: &JsonObject<'_>) -> Result<(BTreeMap<String, MetricValue>, u64), FieldError> {
    let (mut kept, mut left_out) = (BTreeMap::new(), 0);
    let Some(metrics) = document.object("metrics")? else { return Ok((kept, left_out)) };
    for (name, value) in metrics.fields() {
        let value = match value {
            Value::Null => MetricValue::Null,
            Value::Bool(value) => MetricValue::Bool(*value),
            Value::Number(number) => match number.as_f64().filter(|number| number.is_finite()) {
                Some(number) => MetricValue::Number(number),
                None => return Err(metrics.invalid(&shown(name), "a finite number")),
            },
            Value::String(text) => MetricValue::Text(text.clone()),
            Value::Array(_) | Value::Object(_) => {
                return Err(metrics.invalid(&shown(name), "a number, text, true, false or null"));
            }
        };
        let is_long =
            matches!(&value, MetricValue::Text(text) if text.len() > limits::HARNESS_TEXT_BYTES);
        if is_long || !is_kept_name(name) || kept.len() >= limits::HARNESS_METRICS {
            left_out += 1;
        } else {
            kept.insert(name.to_owned(), value);
        }
    }
    Ok((kept, left_out))
}

/// A name of the document, short enough for a message.
fn shown(name: &str) -> String {
    limits::shorten(name.to_owned(), limits::HARNESS_NAME_BYTES)
}

fn artifact(object: &JsonObject<'_>) -> Result<OutputFileRef, FieldError> {
    Ok(OutputFileRef {
        path: object.required_text("path")?.to_owned(),
        logical_name: object.text("logical_name")?.map(str::to_owned),
        mime_type: object.text("mime_type")?.map(str::to_owned),
    })
}

fn checkpoint(object: &JsonObject<'_>) -> Result<OutputCheckpoint, FieldError> {
    Ok(OutputCheckpoint {
        path: object.required_text("path")?.to_owned(),
        logical_name: object.text("logical_name")?.map(str::to_owned),
        step: object.count("step")?,
        epoch: object.count("epoch")?,
    })
}

fn error(object: &JsonObject<'_>) -> Result<OutputError, FieldError> {
    object.text("stack")?;
    let read = |key, most| {
        let text = object.text(key)?;
        Ok(text.map(|text| limits::shorten(text.to_owned(), most)))
    };
    let error_type = read("error_type", limits::HARNESS_NAME_BYTES)?;
    Ok(OutputError { error_type, message: read("message", limits::HARNESS_ERROR_BYTES)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::testing;
    use proptest::prelude::*;

    fn document(more: &Value) -> Value {
        let mut document = json!({
            "schema_version": "trial_output_v1", "ids": testing::ids(), "outcome": "success",
        });
        let more = more.as_object().expect("an object").clone();
        document.as_object_mut().expect("an object").extend(more);
        document
    }

    fn parse(more: &Value) -> Result<TrialOutput, TrialOutputError> {
        TrialOutput::parse(document(more).to_string().as_bytes())
    }

    #[test]
    fn trial_output_with_all_properties_is_read() {
        let output = parse(&json!({
            "answer": ["a"],
            "objective": { "name": "loss", "value": -1, "direction": "minimize" },
            "metrics": { "a": 1, "b": "x", "c": true, "d": null },
            "artifacts": [{ "path": "/out/a", "mime_type": "text/plain" }],
            "checkpoints": [{ "path": "/out/c", "step": 3, "epoch": 0 }],
            "error": { "error_type": "t", "message": "m", "stack": "s" },
            "ext": { "any": 1 },
        }));
        let output = output.expect("valid");
        let direction = Some(ObjectiveDirection::Minimize);
        let objective = Objective { name: "loss".into(), value: -1.0, direction };
        assert_eq!((output.outcome, output.objective), (HarnessOutcome::Success, Some(objective)));
        let values: Vec<MetricValue> = output.metrics.into_values().collect();
        use MetricValue::{Bool, Null, Number, Text};
        assert_eq!(values, [Number(1.0), Text("x".into()), Bool(true), Null]);
        assert_eq!((output.artifacts.len(), output.checkpoints[0].step), (1, Some(3)));
        assert_eq!(output.error.and_then(|error| error.error_type).as_deref(), Some("t"));
    }

    #[test]
    fn trial_output_words_equal_their_json() {
        for (name, outcome) in HarnessOutcome::NAMES {
            assert_eq!((outcome.as_str(), &json!(outcome)), (*name, &json!(name)));
        }
        for (name, direction) in ObjectiveDirection::NAMES {
            assert_eq!((direction.as_str(), &json!(direction)), (*name, &json!(name)));
        }
    }

    #[test]
    fn trial_output_that_breaks_schema_names_property() {
        for (more, message) in [
            (json!({ "schema_version": "v2" }), "`schema_version` is not one of trial_output_v1"),
            (json!({ "ids": {} }), "`ids.run_id` is missing"),
            (json!({ "outcome": "maybe" }), "`outcome` is not one of success, failure"),
            (json!({ "answer": 3 }), "`answer` is not text, an object or a list"),
            (json!({ "objective": [] }), "`objective` is not an object"),
            (json!({ "objective": { "name": "x" } }), "`objective.value` is missing"),
            (json!({ "objective": { "name": "", "value": 1 } }), "`objective.name` is not a name"),
            (json!({ "metrics": { "a": [] } }), "`metrics.a` is not a number, text"),
            (json!({ "artifacts": [{}] }), "`artifacts[0].path` is missing"),
            (json!({ "artifacts": [1] }), "`artifacts[0]` is not an object"),
            (json!({ "checkpoints": [{ "path": "p", "step": -1 }] }), "`checkpoints[0].step`"),
            (json!({ "error": { "message": 1 } }), "`error.message` is not text"),
        ] {
            let error = parse(&more).expect_err("invalid").to_string();
            assert!(error.starts_with(message), "{error}");
        }
        assert_eq!(
            TrialOutput::parse(b"{}").expect_err("empty").to_string(),
            "`schema_version` is missing"
        );
        let most = usize::try_from(limits::TRIAL_OUTPUT_BYTES).expect("small");
        let long = vec![b' '; most + 1];
        assert_eq!(TrialOutput::parse(&long), Err(TrialOutputError::TooLong));
    }

    #[test]
    fn trial_output_metrics_beyond_limits_are_counted() {
        let mut metrics: serde_json::Map<String, Value> =
            (0..limits::HARNESS_METRICS + 5).map(|n| (format!("m{n:03}"), json!(n))).collect();
        let output = parse(&json!({ "metrics": metrics })).expect("valid");
        assert_eq!((output.metrics.len(), output.metrics_left_out), (limits::HARNESS_METRICS, 5));
        metrics.retain(|name, _| name.as_str() < "m010");
        metrics.insert("n".repeat(limits::HARNESS_NAME_BYTES + 1), json!(1));
        metrics.insert("text".into(), json!("t".repeat(limits::HARNESS_TEXT_BYTES + 1)));
        metrics.insert("line\nbreak".into(), json!(1));
        metrics.insert(String::new(), json!(1));
        let output = parse(&json!({ "metrics": metrics })).expect("valid");
        assert_eq!((output.metrics.len(), output.metrics_left_out), (10, 4));
    }

    #[test]
    fn trial_output_of_failed_process_is_valid_document() {
        let output = TrialOutput::process_error(testing::ids(), "m".repeat(10_000));
        let read = TrialOutput::parse(&output.to_document()).expect("valid");
        assert_eq!(read, output);
        let error = read.error.expect("an error");
        assert_eq!(error.error_type.as_deref(), Some("harness_process_error"));
        assert!(error.message.is_some_and(|text| text.len() <= limits::HARNESS_ERROR_BYTES));
    }

    #[test]
    fn last_line_skips_empty_lines() {
        assert_eq!(last_line("a\n {\"b\": 1} \r\n\n  \n"), Some("{\"b\": 1}"));
        assert_eq!(last_line(" \n\n"), None);
    }

    proptest! {
        #[test]
        fn trial_output_parser_accepts_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            at in 0usize..400,
            byte in any::<u8>(),
        ) {
            let _parsed = TrialOutput::parse(&bytes);
            let mut damaged = document(&json!({ "metrics": { "a": 1 }, "artifacts": [{}] }))
                .to_string()
                .into_bytes();
            let at = at % damaged.len();
            damaged[at] = byte;
            let _parsed = TrialOutput::parse(&damaged);
        }
    }
}
