//! Label and field selectors.

use serde_json::Value;

use super::status::ApiError;

/// A parsed `labelSelector` and `fieldSelector`.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectSelector {
    labels: Vec<LabelRequirement>,
    fields: Vec<(String, String, bool)>,
}

#[derive(Debug, Clone)]
struct LabelRequirement {
    key: String,
    test: LabelTest,
}

#[derive(Debug, Clone)]
enum LabelTest {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl ObjectSelector {
    /// Parses both selectors of a request.
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Self, ApiError> {
        let mut selector = Self::default();
        for text in split_outside_parentheses(labels) {
            selector.labels.push(parse_requirement(text.trim())?);
        }
        for text in fields.split(',').filter(|text| !text.is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = text.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = text.split_once("==") {
                (path, value, true)
            } else if let Some((path, value)) = text.split_once('=') {
                (path, value, true)
            } else {
                return Err(ApiError::bad_request(format!("invalid field selector {text:?}")));
            };
            selector.fields.push((path.to_owned(), value.to_owned(), equal));
        }
        Ok(selector)
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.matches_labels(&object["metadata"]["labels"])
            && self.fields.iter().all(|(path, value, equal)| {
                let found = path.split('.').fold(object, |object, field| &object[field]);
                let found = match found {
                    Value::String(text) => text.clone(),
                    Value::Null => String::new(),
                    other => other.to_string(),
                };
                (found == *value) == *equal
            })
    }

    fn matches_labels(&self, labels: &Value) -> bool {
        self.labels.iter().all(|requirement| {
            let found = labels[&requirement.key].as_str();
            match &requirement.test {
                LabelTest::Exists => found.is_some(),
                LabelTest::Absent => found.is_none(),
                LabelTest::In(values) => {
                    found.is_some_and(|found| values.iter().any(|value| value == found))
                }
                LabelTest::NotIn(values) => {
                    found.is_none_or(|found| values.iter().all(|value| value != found))
                }
            }
        })
    }
}

/// Whether a `LabelSelector` object (`matchLabels`, `matchExpressions`) selects labels.
pub(super) fn label_selector_matches(selector: &Value, labels: &Value) -> bool {
    let pairs = selector["matchLabels"].as_object();
    let labels_match =
        pairs.is_none_or(|pairs| pairs.iter().all(|(key, value)| labels[key] == *value));
    let expressions = selector["matchExpressions"].as_array().map_or(&[][..], Vec::as_slice);
    labels_match
        && expressions.iter().all(|expression| {
            let found = &labels[expression["key"].as_str().unwrap_or_default()];
            let listed =
                expression["values"].as_array().is_some_and(|values| values.contains(found));
            match expression["operator"].as_str() {
                Some("In") => listed,
                Some("NotIn") => !listed,
                Some("Exists") => found.is_string(),
                Some("DoesNotExist") => found.is_null(),
                _ => false,
            }
        })
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn parse_requirement(text: &str) -> Result<LabelRequirement, ApiError> {
    let values = |list: &str| -> Vec<String> {
        let list = list.trim().trim_start_matches('(').trim_end_matches(')');
        list.split(',').map(|value| value.trim().to_owned()).collect()
    };
    let (key, test) = if let Some((key, list)) = text.split_once(" notin ") {
        (key, LabelTest::NotIn(values(list)))
    } else if let Some((key, list)) = text.split_once(" in ") {
        (key, LabelTest::In(values(list)))
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, LabelTest::NotIn(values(value)))
    } else if let Some((key, value)) = text.split_once("==") {
        (key, LabelTest::In(values(value)))
    } else if let Some((key, value)) = text.split_once('=') {
        (key, LabelTest::In(values(value)))
    } else if let Some(key) = text.strip_prefix('!') {
        (key, LabelTest::Absent)
    } else {
        (text, LabelTest::Exists)
    };
    let key = key.trim();
    if key.is_empty() || key.contains(char::is_whitespace) {
        let message = format!("unable to parse requirement: invalid label key {key:?}");
        return Err(ApiError::bad_request(message));
    }
    Ok(LabelRequirement { key: key.to_owned(), test })
}
