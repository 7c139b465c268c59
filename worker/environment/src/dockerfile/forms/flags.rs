//! Flags of instructions.

use std::sync::LazyLock;

use regex::Regex;

use super::{REFERENCE, UnclearForm, pattern, quoted};
use crate::dockerfile::rules;

static NAME: LazyLock<Regex> = LazyLock::new(|| pattern("^--[a-z][a-z-]*$"));

static VALUE: LazyLock<Regex> =
    LazyLock::new(|| pattern(&quoted(r"[A-Za-z0-9._/@:+~*?=,%!{}\[\]-]")));

/// A name of a variable that quotes end. Docker's builders remove the quotes of flags before they replace
/// variables, so that the name is longer for them.
static SPLIT_NAME: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"\$[A-Za-z0-9_]*["']+[A-Za-z0-9_]"#));

/// The form of a flag of `FROM`, `RUN`, `COPY` or `ADD` that builders read in different ways, or that some
/// of them refuse and others grant.
pub(super) fn unclear_flag(instruction: &str, flag: &str) -> Option<UnclearForm> {
    let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
    let is_known = rules::flags_of(instruction)
        .is_some_and(|known| known.iter().any(|known| name.strip_prefix("--") == Some(*known)));
    let is_plain = NAME.is_match(name) && (value.is_empty() || VALUE.is_match(value));
    if !is_plain || !is_known || hides_source(flag) || SPLIT_NAME.is_match(value) {
        return Some(UnclearForm::Flag);
    }
    // Readers of images remove no quotes.
    let is_bare = !value.is_empty() && !value.contains(['"', '\'']);
    match name {
        "--from" | "--mount" if !is_bare => Some(UnclearForm::Flag),
        "--from" => (!REFERENCE.is_match(value)).then_some(UnclearForm::CopySource),
        "--mount" => unclear_mount(value),
        _ => grants_more(name, value).then_some(UnclearForm::Isolation),
    }
}

/// Whether some builders take a part of a flag for `--from`: they look for it anywhere in a flag of `COPY`,
/// and the value of the flag is the image then. Quotes in it hide nothing: builders remove them at various times.
fn hides_source(flag: &str) -> bool {
    flag.replace(['"', '\''], "").contains("--from") && !flag.starts_with("--from=")
}

fn unclear_mount(mount: &str) -> Option<UnclearForm> {
    let options = mount.split(',').filter_map(|option| option.split_once('='));
    let mut sources = options.filter(|(key, _)| key.eq_ignore_ascii_case("from"));
    if !sources.all(|(_, source)| REFERENCE.is_match(source)) {
        return Some(UnclearForm::CopySource);
    }
    has_variable(mount).then_some(UnclearForm::Mount)
}

/// Whether the value of a variable may be more options of a mount: some builders replace variables before
/// they look for the commas.
fn has_variable(mount: &str) -> bool {
    mount.contains('$')
}

/// Whether a flag of `RUN` gives its command the network, the devices or the rights of the host. BuildKit
/// asks its client for them, other builders do not.
fn grants_more(name: &str, value: &str) -> bool {
    match name {
        "--device" => true,
        "--network" => !matches!(value, "default" | "none"),
        "--security" => value != "sandbox",
        _ => false,
    }
}

/// The form of a flag in a line that may be one of a script. Other flags there hide nothing.
pub(super) fn unclear_flag_of_line(instruction: &str, flag: &str) -> Option<UnclearForm> {
    let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
    if hides_source(flag) {
        return Some(UnclearForm::Flag);
    }
    // All builders end the flags here, and take the next word for the image, which is checked.
    if instruction == "FROM" && flag == "--" {
        return None;
    }
    // A stage has no flags of another program.
    if instruction == "FROM" || flag.contains(['"', '\'', '\\', '`']) {
        return unclear_flag(instruction, flag);
    }
    if instruction != "RUN" {
        return None;
    }
    if name == "--mount" && has_variable(value) {
        return Some(UnclearForm::Mount);
    }
    grants_more(name, value).then_some(UnclearForm::Isolation)
}
