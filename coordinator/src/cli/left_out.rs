//! Options of a stored command line whose values may be secrets and are not kept.

use serde::{Deserialize, Serialize};

use super::output::quoted;
use crate::config::{repository_without_secrets, without_secrets};

/// Options that set a variable, each with its alias.
const VARIABLE_OPTIONS: [(&str, &str); 2] = [("--agent-env", "--ae"), ("--verifier-env", "--ve")];

/// Options with the address of a server.
const SERVER_OPTIONS: [&str; 2] = ["--nats", "--remote-endpoint"];

/// Option with the address of a repository, which may be given several times.
const REPOSITORY_OPTION: &str = "--repo";

/// Option with the place of a blob store. A URL with a login is refused, but hints may come before that.
const STORE_OPTION: &str = "--store";

/// Options with an address, which may have a login, each with its aliases.
const ADDRESS_OPTIONS: [&[&str]; 4] = [
    &[REPOSITORY_OPTION],
    &["--registry", "--registry-path", "--registry-url"],
    &["--base-url"],
    &[STORE_OPTION],
];

/// Variables that the shell or the login sets, sorted: their value in a shell is not the one that a
/// user gave a run.
const VARIABLES_OF_SHELL: &[&str] = &[
    "CDPATH",
    "COLUMNS",
    "DIRSTACK",
    "ENV",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HOME",
    "HOST",
    "HOSTNAME",
    "HOSTTYPE",
    "IFS",
    "LANG",
    "LINENO",
    "LINES",
    "LOGNAME",
    "MACHTYPE",
    "MAIL",
    "OLDPWD",
    "OPTARG",
    "OPTERR",
    "OPTIND",
    "OSTYPE",
    "PATH",
    "PIPESTATUS",
    "PPID",
    "PROMPT",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHELL",
    "SHELLOPTS",
    "SHLVL",
    "SRANDOM",
    "TERM",
    "TMPDIR",
    "UID",
    "USER",
    "USERNAME",
    "_",
    "path",
];

/// Beginnings of names of such variables.
const PREFIXES_OF_SHELL: [&str; 3] = ["BASH", "HIST", "LC_"];

/// An option whose value is not kept: `--nats`, or with its variable, `--agent-env=KEY`, or with its
/// address without the login, `--repo=https://host/repository`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct LeftOutOption(String);

impl LeftOutOption {
    /// The option without its value, or without the secret in it, if that may have one.
    pub(super) fn of(option: &str, value: &str) -> Option<Self> {
        if SERVER_OPTIONS.contains(&option) {
            // A server's address may have a password in it.
            return value.contains('@').then(|| Self(option.to_owned()));
        }
        if let Some(option) = address_option(option) {
            let shown = shown_address(option, value);
            return (shown != value).then(|| Self(format!("{option}={shown}")));
        }
        let (option, _) = VARIABLE_OPTIONS.iter().find(|names| is_either(option, names))?;
        match value.split_once('=') {
            Some((_, value)) if value.is_empty() || is_reference(value) => None,
            Some((name, _)) => Some(Self(format!("{option}={name}"))),
            None => Some(Self((*option).to_owned())),
        }
    }

    /// The option for a NATS server.
    pub(super) fn server() -> Self {
        Self(SERVER_OPTIONS[0].to_owned())
    }

    /// Whether a word is an option whose value may be a secret.
    pub(super) fn is_possible(option: &str) -> bool {
        SERVER_OPTIONS.contains(&option)
            || address_option(option).is_some()
            || VARIABLE_OPTIONS.iter().any(|names| is_either(option, names))
    }

    /// Whether it is this option.
    pub(super) fn is(&self, option: &str) -> bool {
        self.parts().0 == option
    }

    /// Whether a given option, with its value, replaces it.
    pub(super) fn is_given_by(&self, option: &str, value: &str) -> bool {
        let (own, variable) = self.parts();
        if let Some(option) = address_option(option) {
            let is_it = option != REPOSITORY_OPTION
                || variable.is_none_or(|shown| shown == shown_address(option, value));
            return own == option && is_it;
        }
        let is_same =
            VARIABLE_OPTIONS.iter().any(|names| is_either(own, names) && is_either(option, names));
        let name = value.split_once('=').map(|(name, _)| name);
        (own == option || is_same) && variable.is_none_or(|variable| name == Some(variable))
    }

    /// The option in a message: `--agent-env KEY`.
    pub(super) fn shown(&self) -> String {
        self.0.replacen('=', " ", 1)
    }

    /// The option with its value, for a shell. The value of a variable is that of the shell's variable
    /// with its name, without which the shell refuses the command; of another one if the shell itself
    /// sets that, or can have none of this name.
    pub(super) fn for_shell(&self) -> String {
        let (option, variable) = self.parts();
        match (&*quoted(option), variable) {
            (option, _) if address_option(option).is_some() => format!("{option} URL"),
            (option, Some(name)) if is_taken_from_shell(name) => {
                format!("{option} \"{name}=${{{name}:?}}\"")
            }
            (option, Some(name)) => {
                let name_in_shell = value_name(name);
                format!("{option} {}\"${{{name_in_shell}:?}}\"", quoted(&format!("{name}=")))
            }
            (option, None) if SERVER_OPTIONS.contains(&option) => format!("{option} URL"),
            (option, None) => format!("{option} NAME=VALUE"),
        }
    }

    /// The step without which the command line of [`for_shell`](Self::for_shell) does not work.
    pub(super) fn need(&self) -> String {
        self.need_where(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
    }

    /// The same where the environment has a variable if `is_set` says so.
    fn need_where(&self, is_set: impl Fn(&str) -> bool) -> String {
        match self.parts() {
            (STORE_OPTION, Some(shown)) => {
                format!("with {shown} in place of URL: the URL of a store has no login")
            }
            (option, Some(shown)) if address_option(option).is_some() => {
                format!("with {shown} and its login in place of URL")
            }
            (_, Some(name)) if !is_taken_from_shell(name) => {
                let set =
                    format!("set {} in the shell first, to the value of {name}", value_name(name));
                match is_shell_name(name) {
                    true => format!("{set}: that of the shell is its own"),
                    false => set,
                }
            }
            (_, Some(name)) if is_set(name) => {
                format!("check {name} in the shell first: hints show no values of variables")
            }
            (_, Some(name)) => {
                format!("set {name} in the shell first: hints show no values of variables")
            }
            (option, None) if SERVER_OPTIONS.contains(&option) => NEEDS_SERVER.to_owned(),
            (_, None) => "with the variable and its value in place of NAME=VALUE".to_owned(),
        }
    }

    /// The option, and its variable.
    fn parts(&self) -> (&str, Option<&str>) {
        match self.0.split_once('=') {
            Some((option, variable)) => (option, Some(variable)),
            None => (self.0.as_str(), None),
        }
    }
}

/// The shell's variable with the value of a variable that cannot have its own name there.
fn value_name(variable: &str) -> String {
    match is_shell_name(variable) {
        true => format!("VALUE_OF_{variable}"),
        false => "VALUE".to_owned(),
    }
}

/// The step without which a command with `--nats URL` does not work.
pub(super) const NEEDS_SERVER: &str = "with the address of your NATS server in place of URL";

/// The name of an option with an address.
fn address_option(option: &str) -> Option<&'static str> {
    let names = ADDRESS_OPTIONS.iter().find(|names| names.contains(&option))?;
    names.first().copied()
}

/// The address of an option with this name, without the login that it may have.
fn shown_address(option: &str, value: &str) -> String {
    match option {
        REPOSITORY_OPTION => repository_without_secrets(value),
        // A directory.
        STORE_OPTION if !value.contains("://") || value.starts_with("file:") => value.to_owned(),
        _ => without_secrets(value),
    }
}

fn is_either(option: &str, (name, alias): &(&str, &str)) -> bool {
    option == *name || option == *alias
}

/// Whether a value is that of another variable, `${NAME}`, and no secret itself.
fn is_reference(value: &str) -> bool {
    let name = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(is_shell_name)
}

fn is_shell_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty() && name.chars().all(is_word)
}

/// Whether a shell gives the value of a variable: it can have the name, and does not set it itself.
fn is_taken_from_shell(name: &str) -> bool {
    let is_own = VARIABLES_OF_SHELL.contains(&name)
        || PREFIXES_OF_SHELL.iter().any(|prefix| name.starts_with(prefix));
    is_shell_name(name) && !is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_of_the_shell_itself_is_replaced_by_the_user() {
        for name in [
            "PATH",
            "HOME",
            "PWD",
            "USER",
            "SHELL",
            "IFS",
            "LC_ALL",
            "BASH_ENV",
            "_",
            "OSTYPE",
            "SHELLOPTS",
            "SRANDOM",
            "EPOCHSECONDS",
            "HOST",
            "USERNAME",
            "PROMPT",
            "path",
        ] {
            let option = LeftOutOption::of("--ae", &format!("{name}=x")).expect("a value");
            let shell = format!("--agent-env {name}=\"${{VALUE_OF_{name}:?}}\"");
            assert_eq!(option.for_shell(), shell);
            let need = format!(
                "set VALUE_OF_{name} in the shell first, to the value of {name}: that of the shell is \
                 its own"
            );
            assert_eq!(option.need(), need);
        }
        for name in ["PATHS", "MY_PATH", "paths"] {
            let option = LeftOutOption::of("--ae", &format!("{name}=x")).expect("a value");
            assert_eq!(option.for_shell(), format!("--agent-env \"{name}=${{{name}:?}}\""));
        }
    }

    #[test]
    fn variable_that_the_environment_has_is_to_be_checked() {
        let option = LeftOutOption::of("--ve", "KEY=x").expect("a value");
        assert_eq!(
            option.need_where(|name| name == "KEY"),
            "check KEY in the shell first: hints show no values of variables"
        );
        assert_eq!(
            option.need_where(|_| false),
            "set KEY in the shell first: hints show no values of variables"
        );
    }

    #[test]
    fn left_out_variable_takes_value_of_the_shell() {
        let option = LeftOutOption::of("--ae", "A=x y").expect("a value");
        assert_eq!(option.for_shell(), r#"--agent-env "A=${A:?}""#);
        assert_eq!(option.shown(), "--agent-env A");
        assert_eq!(option.need(), "set A in the shell first: hints show no values of variables");
        for (given, value, expected) in [
            ("--agent-env", "A=z", true),
            ("--ae", "A=z", true),
            ("--agent-env", "B=z", false),
            ("--verifier-env", "A=z", false),
        ] {
            assert_eq!(option.is_given_by(given, value), expected, "{given} {value}");
        }
    }

    #[test]
    fn left_out_value_without_name_in_the_shell_is_replaced_by_the_user() {
        for (option, for_shell, need) in [
            (
                "--agent-env=a.b",
                "--agent-env a.b=\"${VALUE:?}\"",
                "set VALUE in the shell first, to the value of a.b",
            ),
            ("--nats", "--nats URL", NEEDS_SERVER),
            // Of an earlier version.
            ("--ve", "--ve NAME=VALUE", "with the variable and its value in place of NAME=VALUE"),
        ] {
            let option = LeftOutOption(option.to_owned());
            assert_eq!((option.for_shell().as_str(), option.need().as_str()), (for_shell, need));
        }
        let earlier = LeftOutOption("--ve".to_owned());
        assert!(earlier.is_given_by("--verifier-env", "A=z"));
    }

    #[test]
    fn address_with_a_login_is_left_out_and_the_user_adds_the_login() {
        let option = LeftOutOption::of("--repo", "https://me:pw@h/r").expect("a login");
        assert_eq!(option.shown(), "--repo https://h/r");
        assert_eq!(option.for_shell(), "--repo URL");
        assert_eq!(option.need(), "with https://h/r and its login in place of URL");
        for (given, value, expected) in [
            ("--repo", "https://me:other@h/r", true),
            ("--repo", "https://me:pw@h/other", false),
            ("--registry", "https://me:pw@h/r", false),
        ] {
            assert_eq!(option.is_given_by(given, value), expected, "{given} {value}");
        }
        for name in ["--registry", "--registry-url", "--base-url", "--store"] {
            let option = LeftOutOption::of(name, "https://me:pw@h/r").expect("a login");
            assert!(!option.shown().contains("pw") && !option.for_shell().contains("pw"));
            assert!(LeftOutOption::is_possible(name) && option.is_given_by(name, "https://other"));
            assert_eq!(LeftOutOption::of(name, "https://h/r"), None, "{name}");
        }
        for directory in ["/srv//a:b@c", "a:b@c", "file:///srv//a:b@c"] {
            assert_eq!(LeftOutOption::of("--store", directory), None, "{directory}");
        }
        let store = LeftOutOption::of("--store", "s3://me:pw@bucket/x").expect("a login");
        let need = "with s3://bucket/x in place of URL: the URL of a store has no login";
        assert_eq!((store.for_shell().as_str(), store.need().as_str()), ("--store URL", need));
        assert!(!LeftOutOption::is_possible("--sink"), "no address");
        for kept in ["git@h:r", "h:r@v1", "work:tasks@v1"] {
            assert_eq!(LeftOutOption::of("--repo", kept), None, "{kept}");
        }
        let option = LeftOutOption::of("--repo", "me:pw@h:r@v1").expect("a login");
        assert_eq!(option.shown(), "--repo me@h:r@v1");
        assert!(option.is_given_by("--repo", "me:other@h:r@v1"));
        assert!(!option.is_given_by("--repo", "me:pw@h:r@v2"));
    }

    #[test]
    fn reference_to_a_variable_is_kept() {
        for (option, value, is_kept) in [
            ("--agent-env", "KEY=${KEY}", true),
            ("--agent-env", "KEY=${KEY:-secret}", false),
            ("--agent-env", "KEY=secret${KEY}", false),
            ("--agent-env", "KEY=$KEY", false),
            ("--nats", "nats://h:1", true),
            ("--nats", "nats://u:p@h:1", false),
        ] {
            assert_eq!(LeftOutOption::of(option, value).is_none(), is_kept, "{option} {value}");
        }
    }
}
