//! Environment variables: names and template values.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::template::{Template, is_variable_name};

use super::super::diagnostics::ErrorKind;
use super::super::location::SourceLocation;
use super::super::reader::Field;

/// Set by Rollout for every script.
pub(crate) const TASK_INSTRUCTION: &str = "ROLLOUT_TASK_INSTRUCTION";

const EXPECTED_NAME: &str = "a variable name: letters, digits and `_`, not starting with a digit";

/// A value and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The unexpanded value.
    pub template: Template,
    /// Location in the file.
    pub location: SourceLocation,
}

/// Variables with their unexpanded values.
pub(crate) fn read(field: &Field<'_>) -> BTreeMap<String, Variable> {
    let entries = field.entries().unwrap_or_default();
    entries.into_iter().filter_map(|(name, value)| variable(name, &value)).collect()
}

fn variable(name: &str, field: &Field<'_>) -> Option<(String, Variable)> {
    let mut good = field.required("a value (\"\" for the empty text)");
    if !is_variable_name(name) {
        field.reject(ErrorKind::BadValue, "this name", EXPECTED_NAME);
        good = false;
    } else if name == TASK_INSTRUCTION {
        let expected = "another name: Rollout sets this variable to the path of the instruction";
        field.reject(ErrorKind::BadValue, "this name", expected);
        good = false;
    }
    let template = Template::new(field.text()?);
    // The value may be a secret: only the error message is shown.
    if let Err(error) = template.check() {
        let expected = "text with `${NAME}` or `${NAME:-default}` (`$$` is a dollar)";
        field.reject(ErrorKind::BadValue, error.to_string(), expected);
        good = false;
    }
    good.then(|| (name.to_owned(), Variable { template, location: field.location() }))
}

/// The unexpanded values.
pub(crate) fn templates(variables: BTreeMap<String, Variable>) -> BTreeMap<String, Template> {
    variables.into_iter().map(|(name, variable)| (name, variable.template)).collect()
}

/// Names of variables (`task_env`, `secrets`).
pub(crate) fn read_names(field: &Field<'_>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in field.items().unwrap_or_default() {
        match item.string() {
            Some(name) if is_variable_name(&name) => {
                names.insert(name);
            }
            Some(_) => item.bad_value(EXPECTED_NAME),
            None => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn env_number_or_boolean_keeps_its_written_text() {
        let (env, faults, _) = read_field("{A: 1.10, B: true, C: 007, D: '${X:-y}', E: ''}", read);
        assert_eq!(faults, []);
        let values: Vec<&str> = env.values().map(|v| v.template.as_str()).collect();
        assert_eq!(values, ["1.10", "true", "007", "${X:-y}", ""]);
    }

    #[test]
    fn env_variable_errors_are_all_reported() {
        let text = "{1A: x, ROLLOUT_TASK_INSTRUCTION: /x, OPEN: '${X', LIST: [1], NONE: }";
        assert_eq!(
            read_field(text, read).1,
            [
                ("x.1A".to_owned(), ErrorKind::BadValue),
                ("x.ROLLOUT_TASK_INSTRUCTION".to_owned(), ErrorKind::BadValue),
                ("x.OPEN".to_owned(), ErrorKind::BadValue),
                ("x.LIST".to_owned(), ErrorKind::WrongType),
                ("x.NONE".to_owned(), ErrorKind::MissingKey),
            ]
        );
        let faults = read_field("[GOOD, 'not good', ~]", read_names).1;
        assert_eq!(
            faults,
            [("x[2]".to_owned(), ErrorKind::WrongType), ("x[1]".to_owned(), ErrorKind::BadValue),]
        );
    }
}
