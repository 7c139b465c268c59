//! `harness` of an agent: a command that follows the contract of a harness.

use rollout_protocol::harness::{IntegrationLevel, ManifestError};
use rollout_protocol::spec::harness::{CONTROL_PATH, HarnessSpec, INPUT_PATH, OUTPUT_PATH};

use super::super::diagnostics::ErrorKind;
use super::super::keys::Key;
use super::super::reader::{Field, Fields};

keys! {
    /// The keys of a harness.
    pub(crate) table HarnessKeys {
        command: Value("text"), "required", "Command of the attempt, run by the environment's shell.";
        integration_level: Value("cli_basic|cli_events|otel|sdk_control|sdk_full"), "cli_basic",
            "How much of the contract it implements.";
        events_path: EnvironmentPath("absolute path"), "required from `cli_events`, except `otel`",
            "File that it writes its hook events to.";
        control_path: EnvironmentPath("absolute path"), CONTROL_PATH, "File that it reads controls from.";
        input_path: EnvironmentPath("absolute path"), INPUT_PATH, "File with its input.";
        output_path: EnvironmentPath("absolute path"), OUTPUT_PATH, "File that it writes its output to.";
        bindings: Value("table"), "", "Values for it, given as `bindings` of its input.";
    }
}

/// Expected form of a path.
const PATH: &str = "an absolute path of a file below a directory, without `.`, `..` or `//`, such as `/out/x.json`";

/// Reads a harness beside the scripts of its agent.
pub(crate) fn read(
    field: &Field<'_>,
    install: &Field<'_>,
    execute: &Field<'_>,
) -> Option<HarnessSpec> {
    if execute.is_present() {
        execute.reject_with_hint(
            ErrorKind::Conflict,
            "a script beside `harness`",
            "one of both",
            "the `command` of the harness makes the attempt",
        );
    }
    let mut fields = field.mapping()?;
    let command = fields.take(HarnessKeys::command);
    command.required("a command");
    let level = fields.take(HarnessKeys::integration_level).keyword(IntegrationLevel::NAMES);
    let events = fields.take(HarnessKeys::events_path);
    let mut paths = PathReader { fields: &mut fields, seen: Vec::new() };
    let [input_path, output_path, control_path] = [
        (HarnessKeys::input_path, INPUT_PATH),
        (HarnessKeys::output_path, OUTPUT_PATH),
        (HarnessKeys::control_path, CONTROL_PATH),
    ]
    .map(|(key, default)| paths.read(key, default));
    let events_path = paths.check(&events);
    let bindings = fields.take(HarnessKeys::bindings).json().unwrap_or_default();
    fields.finish();
    let spec = HarnessSpec {
        install: install.non_empty_string(),
        integration_level: level.unwrap_or_default(),
        events_path,
        control_path,
        input_path,
        output_path,
        bindings,
        ..HarnessSpec::new(command.non_empty_string().unwrap_or_default())
    };
    match spec.manifest().check() {
        // A wrong path has its own error.
        Err(ManifestError::HooksMissing(level)) if !events.is_present() => {
            let expected = format!("a path: integration level `{level}` includes hook events");
            events.reject(ErrorKind::MissingKey, "nothing", expected);
        }
        Err(_) | Ok(()) => {}
    }
    Some(spec)
}

/// Reads paths that must differ from each other.
struct PathReader<'a, 'b> {
    fields: &'a mut Fields<'b>,
    seen: Vec<(String, String)>,
}

impl PathReader<'_, '_> {
    fn read(&mut self, key: Key, default: &str) -> String {
        let field = self.fields.take(key);
        let path = self.check(&field);
        path.unwrap_or_else(|| {
            self.seen.push((default.to_owned(), key.name.to_owned()));
            default.to_owned()
        })
    }

    fn check(&mut self, field: &Field<'_>) -> Option<String> {
        let path = field.non_empty_string()?;
        if !is_file_path(&path) {
            field.bad_value(PATH);
            return None;
        }
        if let Some((_, other)) = self.seen.iter().find(|(seen, _)| *seen == path) {
            let found = format!("{}, also the path of `{other}`", field.describe());
            field.reject(ErrorKind::Conflict, found, "a file of its own");
            return None;
        }
        self.seen.push((path.clone(), field.location().key));
        Some(path)
    }
}

/// Whether a path is absolute, plain, and not directly below the root, whose permissions would have
/// to change.
fn is_file_path(path: &str) -> bool {
    let parts = |rest: &str| {
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        rest.split('/').all(plain) && rest.contains('/')
    };
    !path.chars().any(char::is_control) && path.strip_prefix('/').is_some_and(parts)
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::agent::AgentKind;
    use serde_json::json;

    use super::super::testing::read_field;
    use super::*;

    /// The harness of an agent, and its errors.
    fn harness(text: &str) -> (Option<HarnessSpec>, Vec<(String, ErrorKind)>) {
        let (agents, errors, _) =
            read_field(&format!("[{{name: a, harness: {text}}}]"), super::super::testing::agents);
        let mut specs = agents.into_iter().filter_map(|agent| match agent.kind {
            AgentKind::Harness(spec) => Some(*spec),
            _ => None,
        });
        (specs.next(), errors)
    }

    #[test]
    fn harness_without_options_has_defaults() {
        let (spec, errors) = harness("{command: run}");
        assert_eq!((spec, errors), (Some(HarnessSpec::new("run")), Vec::new()));
    }

    #[test]
    fn harness_with_all_options_is_parsed() {
        let text = "{command: run, integration_level: cli_events, events_path: /logs/agent/e.jsonl, \
                    control_path: /c/x, input_path: /i/x, output_path: /o/x, \
                    bindings: {model: m, limits: [1, 2]}}";
        let (spec, errors) = harness(text);
        let spec = spec.expect("a harness");
        assert_eq!(errors, []);
        assert_eq!(spec.integration_level, IntegrationLevel::CliEvents);
        assert_eq!(spec.events_path.as_deref(), Some("/logs/agent/e.jsonl"));
        let paths = [&spec.control_path, &spec.input_path, &spec.output_path];
        assert_eq!(paths, ["/c/x", "/i/x", "/o/x"]);
        assert_eq!(json!(spec.bindings), json!({ "model": "m", "limits": [1, 2] }));
    }

    #[test]
    fn harness_level_without_events_path_is_refused() {
        for (name, level) in IntegrationLevel::NAMES {
            let (_, errors) = harness(&format!("{{command: run, integration_level: {name}}}"));
            let missing = ("x[0].harness.events_path".to_owned(), ErrorKind::MissingKey);
            let expected = level.requires_events().then_some(missing);
            assert_eq!(errors, Vec::from_iter(expected), "{name}");
        }
    }

    #[test]
    fn harness_config_errors_name_their_keys() {
        for (text, key, kind) in [
            ("{}", "x[0].harness.command", ErrorKind::MissingKey),
            ("{command: ' '}", "x[0].harness.command", ErrorKind::BadValue),
            ("3", "x[0].harness", ErrorKind::WrongType),
            (
                "{command: c, integration_level: cli}",
                "x[0].harness.integration_level",
                ErrorKind::BadValue,
            ),
            ("{command: c, input_path: out/x}", "x[0].harness.input_path", ErrorKind::BadValue),
            ("{command: c, output_path: /x}", "x[0].harness.output_path", ErrorKind::BadValue),
            (
                "{command: c, control_path: /a/../x}",
                "x[0].harness.control_path",
                ErrorKind::BadValue,
            ),
            ("{command: c, events_path: /a//x}", "x[0].harness.events_path", ErrorKind::BadValue),
            (
                "{command: c, events_path: /out/trial_output.json}",
                "x[0].harness.events_path",
                ErrorKind::Conflict,
            ),
            (
                "{command: c, output_path: /a/x, control_path: /a/x}",
                "x[0].harness.control_path",
                ErrorKind::Conflict,
            ),
            ("{command: c, bindings: [1]}", "x[0].harness.bindings", ErrorKind::WrongType),
            ("{command: c, more: 1}", "x[0].harness.more", ErrorKind::UnknownKey),
            ("{command: c}, execute: x", "x[0].execute", ErrorKind::Conflict),
        ] {
            let (_, errors) = harness(text);
            assert_eq!(errors, [(key.to_owned(), kind)], "{text}");
        }
        let (_, errors, _) =
            read_field("[{name: nop, harness: {command: c}}]", super::super::testing::agents);
        assert_eq!(errors, [("x[0].harness".to_owned(), ErrorKind::Conflict)]);
    }

    #[test]
    fn harness_may_have_install_script() {
        let (spec, errors) = harness("{command: c}, install: pip install x");
        assert_eq!(errors, []);
        assert_eq!(spec.and_then(|spec| spec.install).as_deref(), Some("pip install x"));
    }
}
