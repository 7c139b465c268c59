//! `${VAR}` and `${VAR:-default}` in environment values.
//!
//! Templates travel unexpanded through specs, queue, journal and result files; the worker expands
//! them last. `$$` is a literal dollar; a `$` before anything else stands for itself.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A value that may refer to variables of the worker's environment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Template(String);

/// A template that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// `${` without `}`.
    #[error("`${{` at byte {at} is never closed")]
    Unclosed {
        /// Offset of the dollar.
        at: usize,
    },
    /// The name between the braces is not a variable name.
    #[error(
        "`{name}` is not a variable name: expected letters, digits and `_`, not starting with a digit"
    )]
    Name {
        /// The invalid name.
        name: String,
    },
    /// `${` inside a default, which ends at the first `}`.
    #[error("the default of `{name}` contains `${{`: a default cannot refer to a variable")]
    Nested {
        /// The variable with this default.
        name: String,
    },
}

/// A variable without a value and without a default.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable `{name}` is not set")]
pub struct UnsetVariable {
    /// Name of the variable.
    pub name: String,
}

enum TemplatePart<'a> {
    Text(&'a str),
    Variable { name: &'a str, default: Option<&'a str> },
}

impl Template {
    /// Wraps text; [`Template::check`] checks its syntax.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A template that expands to `text`, dollars included.
    pub fn literal(text: &str) -> Self {
        Self(text.replace('$', "$$"))
    }

    /// The unexpanded text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Checks the syntax.
    ///
    /// # Errors
    /// The first syntax error.
    pub fn check(&self) -> Result<(), InvalidTemplate> {
        self.parts().map(|_| ())
    }

    /// Names of the variables the template refers to, each with whether it has a default.
    pub fn variables(&self) -> BTreeSet<(String, bool)> {
        self.parts()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|part| match part {
                TemplatePart::Text(_) => None,
                TemplatePart::Variable { name, default } => {
                    Some((name.to_owned(), default.is_some()))
                }
            })
            .collect()
    }

    /// Replaces every variable by its value from `lookup`, or by its default when the value is
    /// absent or empty.
    ///
    /// # Errors
    /// [`UnsetVariable`] for the first variable with neither. A template with a syntax error stays
    /// as it is (the configuration refuses such templates).
    pub fn expand(&self, lookup: impl Fn(&str) -> Option<String>) -> Result<String, UnsetVariable> {
        let Ok(parts) = self.parts() else { return Ok(self.0.clone()) };
        let mut text = String::with_capacity(self.0.len());
        for part in parts {
            match part {
                TemplatePart::Text(literal) => text.push_str(literal),
                TemplatePart::Variable { name, default } => match (lookup(name), default) {
                    (Some(value), None) => text.push_str(&value),
                    (Some(value), Some(_)) if !value.is_empty() => text.push_str(&value),
                    (_, Some(default)) => text.push_str(default),
                    (None, None) => return Err(UnsetVariable { name: name.to_owned() }),
                },
            }
        }
        Ok(text)
    }

    fn parts(&self) -> Result<Vec<TemplatePart<'_>>, InvalidTemplate> {
        let mut parts = Vec::new();
        let mut rest = self.0.as_str();
        while let Some(dollar) = rest.find('$') {
            let (before, after) = rest.split_at(dollar);
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before));
            }
            if let Some(tail) = after.strip_prefix("$$") {
                parts.push(TemplatePart::Text("$"));
                rest = tail;
            } else if let Some(body) = after.strip_prefix("${") {
                let at = self.0.len() - after.len();
                let end = body.find('}').ok_or(InvalidTemplate::Unclosed { at })?;
                parts.push(variable(&body[..end])?);
                rest = &body[end + 1..];
            } else {
                parts.push(TemplatePart::Text("$"));
                rest = &after[1..];
            }
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest));
        }
        Ok(parts)
    }
}

fn variable(body: &str) -> Result<TemplatePart<'_>, InvalidTemplate> {
    let (name, default) = match body.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (body, None),
    };
    if !is_variable_name(name) {
        return Err(InvalidTemplate::Name { name: name.to_owned() });
    }
    if default.is_some_and(|default| default.contains("${")) {
        return Err(InvalidTemplate::Nested { name: name.to_owned() });
    }
    Ok(TemplatePart::Variable { name, default })
}

/// Whether `name` can name an environment variable: `[A-Za-z_][A-Za-z0-9_]*`.
pub fn is_variable_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "KEY" => Some("secret".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn template_with_variables_expands_values_and_defaults() {
        for (text, expected) in [
            ("plain", "plain"),
            ("${KEY}", "secret"),
            ("a${KEY}b${KEY}", "asecretbsecret"),
            ("${NONE:-x y}", "x y"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY}", ""),
            ("$KEY costs 5$", "$KEY costs 5$"),
            ("$${KEY}", "${KEY}"),
            ("${NONE:-}", ""),
        ] {
            assert_eq!(Template::new(text).expand(lookup).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(
            Template::new("${NONE}").expand(lookup),
            Err(UnsetVariable { name: "NONE".into() })
        );
    }

    #[test]
    fn template_with_syntax_error_is_refused() {
        for bad in ["${", "x ${KEY", "${1A}", "${}", "${A B}"] {
            assert!(Template::new(bad).check().is_err(), "{bad}");
        }
    }

    #[test]
    fn template_default_with_nested_variable_is_refused() {
        let nested = Err(InvalidTemplate::Nested { name: "A".to_owned() });
        for bad in ["${A:-${B}}", "${A:-x${B:-y}}", "${A:-${}"] {
            assert_eq!(Template::new(bad).check(), nested, "{bad}");
        }
        assert_eq!(Template::new("${A:-$B}").expand(lookup).as_deref(), Ok("$B"));
    }

    #[test]
    fn template_variables_lists_names_and_defaults() {
        let names = Template::new("${A}-${B:-x}-$$-${A}").variables();
        assert_eq!(names, [("A".to_owned(), false), ("B".to_owned(), true)].into());
    }
}
