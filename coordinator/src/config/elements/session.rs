//! `agents[].session_calls`: how the session files of an agent count its model calls.

use rollout_protocol::spec::agent::{AgentKind, SessionFormat};

use super::super::catalogue::session_fault;
use super::super::diagnostics::ErrorKind;
use super::super::reader::Field;

keys! {
    /// The keys of `agents[].session_calls`.
    pub(crate) table SessionKeys {
        files: ResultPath("text"), "required",
            "Pattern of the files, below `/logs/agent`; `*` stops at a slash, `**` does not.";
        lists: Value("list of text"), "each line is a record",
            "JSON pointers of the lists of records in a file.";
        id: Value("text"), "none",
            "JSON pointer of the id of a call in a record: of records with the same one, the last one counts.";
        input_tokens: Value("list of text"), "none",
            "JSON pointers of numbers in a record whose sum is its input tokens, cached ones included.";
        output_tokens: Value("list of text"), "required",
            "The same of its output tokens, reasoning included; a record without any is not counted.";
    }
}

/// Reads the format of an agent with scripts.
pub(super) fn read(field: &Field<'_>, kind: &AgentKind) -> Option<SessionFormat> {
    let mut fields = field.mapping()?;
    if !kind.runs_own_scripts() {
        field.reject(ErrorKind::Conflict, "session files", "an agent with scripts");
    }
    let list = |field: &Field<'_>| -> Vec<String> {
        field.items().unwrap_or_default().iter().filter_map(Field::non_empty_string).collect()
    };
    let files = fields.take(SessionKeys::files);
    let is_named = files.required("a pattern of files below /logs/agent");
    let format = SessionFormat {
        files: files.non_empty_string().unwrap_or_default(),
        lists: list(&fields.take(SessionKeys::lists)),
        id: fields.take(SessionKeys::id).non_empty_string(),
        input_tokens: list(&fields.take(SessionKeys::input_tokens)),
        output_tokens: list(&fields.take(SessionKeys::output_tokens)),
    };
    fields.finish();
    if let Some(fault) = session_fault(&format).filter(|_| is_named) {
        field.reject(
            ErrorKind::BadValue,
            fault,
            "a pattern, and JSON pointers, which begin with `/`",
        );
    }
    Some(format)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{agents, read_field};
    use super::*;

    fn sessions(text: &str) -> (Vec<Option<SessionFormat>>, Vec<(String, ErrorKind)>) {
        let (agents, faults, _) = read_field(text, agents);
        (agents.into_iter().map(|agent| agent.session).collect(), faults)
    }

    #[test]
    fn session_of_scripts_takes_the_place_of_that_of_the_catalogue() {
        let own =
            "session_calls: {files: 'a/**/*.jsonl', output_tokens: [/o], id: /i, lists: [/l]}";
        let text = format!(
            "[{{name: s, execute: x, {own}}}, {{name: codex, model: openai/m, {own}}}, \
             {{name: pi, model: openai/m}}, {{name: aider, model: openai/m}}]"
        );
        let (found, faults) = sessions(&text);
        assert_eq!(faults, []);
        let expected = SessionFormat {
            files: "a/**/*.jsonl".to_owned(),
            lists: vec!["/l".to_owned()],
            id: Some("/i".to_owned()),
            input_tokens: Vec::new(),
            output_tokens: vec!["/o".to_owned()],
        };
        assert_eq!((&found[0], &found[1]), (&Some(expected.clone()), &Some(expected)));
        let files = |index: usize| found[index].as_ref().map(|format| format.files.as_str());
        assert_eq!((files(2), files(3)), (Some("pi/sessions/*/*.jsonl"), None));
    }

    #[test]
    fn session_that_cannot_be_read_is_an_error() {
        for (session, key, kind) in [
            ("{output_tokens: [/o]}", "x[0].session_calls.files", ErrorKind::MissingKey),
            ("{files: a}", "x[0].session_calls", ErrorKind::BadValue),
            ("{files: 'a[', output_tokens: [/o]}", "x[0].session_calls", ErrorKind::BadValue),
            ("{files: a, output_tokens: [o]}", "x[0].session_calls", ErrorKind::BadValue),
        ] {
            let text = format!("[{{name: s, execute: x, session_calls: {session}}}]");
            assert_eq!(sessions(&text).1, [(key.to_owned(), kind)], "{session}");
        }
        let text = "[{name: oracle, session_calls: {files: a, output_tokens: [/o]}}]";
        assert_eq!(sessions(text).1, [("x[0].session_calls".to_owned(), ErrorKind::Conflict)]);
    }
}
