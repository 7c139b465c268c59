//! Prompts of the agents of a search: templates with placeholders such as `{{idea}}`.

use std::collections::BTreeMap;

use crate::spec::eval::EvalStage;

/// Begin of a placeholder.
const OPEN: &str = "{{";

/// End of a placeholder.
const CLOSE: &str = "}}";

/// A `{{` that begins no placeholder.
const ESCAPED: &str = "\\{{";

/// Placeholders of every step.
const COMMON: &[&str] = &["search", "node", "commit", "repository", "logs", "metrics"];

/// Placeholders of a step that works on an idea.
const OF_IDEAS_TRIED: &[&str] = &["eval", "idea", "idea_file"];

/// Why a text is no template of a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPrompt {
    /// A placeholder that the step does not have.
    #[error("`{{{{{name}}}}}` in line {line}, which is no placeholder of `{stage}`")]
    Unknown {
        /// Its name.
        name: String,
        /// Its line, from 1.
        line: usize,
        /// The step.
        stage: &'static str,
    },
    /// A placeholder without an end.
    #[error("a `{{{{` without `}}}}` in line {line}")]
    Open {
        /// Its line, from 1.
        line: usize,
    },
    /// No text.
    #[error("no text")]
    Empty,
}

/// A part of a template.
#[derive(Debug, PartialEq, Eq)]
enum PromptPart<'a> {
    Text(&'a str),
    Placeholder { name: &'a str, line: usize },
}

/// The placeholders of the prompt of a step.
pub fn placeholders(stage: EvalStage) -> Vec<&'static str> {
    let own: &[&str] = match stage {
        EvalStage::Ideas => &["count", "ideas_dir", "context_dir", "earlier_ideas"],
        EvalStage::Review => &["decision_file"],
        EvalStage::Implement | EvalStage::Tests | EvalStage::Sweep => &[],
    };
    let tried = if stage == EvalStage::Ideas { &[][..] } else { OF_IDEAS_TRIED };
    [COMMON, tried, own].concat()
}

/// Checks that a text is a template of a step.
///
/// # Errors
/// [`InvalidPrompt`].
pub fn check(text: &str, stage: EvalStage) -> Result<(), InvalidPrompt> {
    if text.trim().is_empty() {
        return Err(InvalidPrompt::Empty);
    }
    let known = placeholders(stage);
    for part in parts(text)? {
        if let PromptPart::Placeholder { name, line } = part
            && !known.contains(&name)
        {
            return Err(InvalidPrompt::Unknown {
                name: name.to_owned(),
                line,
                stage: stage.as_str(),
            });
        }
    }
    Ok(())
}

/// Replaces the placeholders by their values. Values are not read again: they may have `{{`. Without
/// a value a placeholder stays as it is, which [`check`] excludes.
pub fn render(text: &str, values: &BTreeMap<&'static str, String>) -> String {
    let Ok(parts) = parts(text) else { return text.to_owned() };
    let mut rendered = String::with_capacity(text.len());
    for part in parts {
        match part {
            PromptPart::Text(text) => rendered.push_str(text),
            PromptPart::Placeholder { name, .. } => match values.get(name) {
                Some(value) => rendered.push_str(value),
                None => rendered.extend([OPEN, name, CLOSE]),
            },
        }
    }
    rendered
}

fn parts(text: &str) -> Result<Vec<PromptPart<'_>>, InvalidPrompt> {
    let (mut parts, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(at) = rest.find(OPEN) {
        let before = &rest[..at];
        line += before.matches('\n').count();
        if let Some(plain) = before.strip_suffix('\\') {
            parts.extend([PromptPart::Text(plain), PromptPart::Text(&ESCAPED[1..])]);
            rest = &rest[at + OPEN.len()..];
            continue;
        }
        parts.push(PromptPart::Text(before));
        let inner = &rest[at + OPEN.len()..];
        let first_line = inner.lines().next().unwrap_or_default();
        let end = first_line.find(CLOSE).ok_or(InvalidPrompt::Open { line })?;
        parts.push(PromptPart::Placeholder { name: inner[..end].trim(), line });
        rest = &inner[end + CLOSE.len()..];
    }
    parts.push(PromptPart::Text(rest));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_replace_placeholders_once() {
        let values = [("idea", "use {{eval}}".to_owned()), ("eval", "7".to_owned())].into();
        let text = "{{idea}} in \\{{idea}} of {{ eval }}, {{count}}\n{}";
        assert_eq!(check("{{ idea }}", EvalStage::Review), Ok(()));
        assert_eq!(render(text, &values), "use {{eval}} in {{idea}} of 7, {{count}}\n{}");
    }

    #[test]
    fn unknown_placeholder_names_its_line_and_step() {
        let error = check("a\n\\{{x}}\n{{idea}} {{ides}}", EvalStage::Implement).expect_err("ides");
        assert_eq!(
            error.to_string(),
            "`{{ides}}` in line 3, which is no placeholder of `implement`"
        );
        for (text, stage) in [
            ("{{idea}}", EvalStage::Ideas),
            ("{{count}}", EvalStage::Implement),
            ("{{decision_file}}", EvalStage::Implement),
            ("{{idea.text}}", EvalStage::Review),
            ("{{}}", EvalStage::Ideas),
        ] {
            assert!(matches!(check(text, stage), Err(InvalidPrompt::Unknown { .. })), "{text}");
        }
        assert_eq!(check("x {{idea\n}}", EvalStage::Review), Err(InvalidPrompt::Open { line: 1 }));
        assert_eq!(check(" \n", EvalStage::Review), Err(InvalidPrompt::Empty));
    }
}
