//! The lines before the first instruction of a Dockerfile, and the characters of its text.

use super::unclear::UnclearPart;
use super::{UnclearForm, UnclearPlace};

/// The places of a text that are unclear before its instructions are read.
pub(in super::super) fn unclear_text(text: &str) -> Vec<UnclearPlace> {
    let mut found: Vec<_> = unclear_comments(text).collect();
    // Lines end in a line feed, also after a carriage return. Only one character of a later set is a blank.
    let is_inert = |c: char| c == '\t' || (c > '\u{7f}' && c != '\u{85}');
    let control = |line: &str| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        line.chars().find(|c| c.is_control() && !is_inert(*c))
    };
    let lines = text.split('\n').enumerate();
    let mut odd = lines.filter_map(|(index, line)| Some((index, control(line)?)));
    found.extend(odd.next().map(|(index, control)| {
        let part = UnclearPart::new(UnclearForm::ControlCharacter, &control.to_string());
        place(index, "", part)
    }));
    found
}

/// The unclear comments above the first instruction. Builders end directives at different comments, so all
/// of them count.
fn unclear_comments(text: &str) -> impl Iterator<Item = UnclearPlace> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim).enumerate();
    let comments = lines.map_while(|(index, line)| match line.strip_prefix('#') {
        Some(comment) => Some((index, comment)),
        None => line.is_empty().then_some((index, "")),
    });
    comments.filter_map(|(index, comment)| {
        let (key, form) = unclear_directive(comment)?;
        Some(place(index, key, UnclearPart::new(form, &format!("#{comment}"))))
    })
}

fn place(index: usize, key: &str, part: UnclearPart) -> UnclearPlace {
    let UnclearPart { form, written } = part;
    UnclearPlace { line: index + 1, key: key.to_owned(), form, written }
}

fn unclear_directive(comment: &str) -> Option<(&'static str, UnclearForm)> {
    let (name, value) = comment.split_once('=')?;
    let named = |known: &&str| name.trim().eq_ignore_ascii_case(known);
    match ["escape", "syntax", "check"].into_iter().find(named)? {
        // The character that builders have without a directive.
        "escape" if value.trim_matches([' ', '\t']) == "\\" => None,
        "escape" => Some(("escape", UnclearForm::EscapeDirective)),
        known => (!comment.is_ascii()).then_some((known, UnclearForm::Directive)),
    }
}
