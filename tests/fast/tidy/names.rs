//! Rules on names: a type name is unambiguous in its crate, and a file is named by its subject.

use std::collections::BTreeMap;

use regex::Regex;

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// Most definitions of one type name in a crate: two for alternatives by platform, or with one in a
/// test.
const MOST_USES: usize = 2;

/// Retired file names: they do not describe the content.
const RETIRED: &[&str] = &[
    "alike",
    "apart",
    "arrivals",
    "asked",
    "board",
    "boards",
    "course",
    "desk",
    "doubts",
    "draft",
    "elsewhere",
    "estate",
    "flight",
    "former",
    "given",
    "guardian",
    "harvest",
    "hello",
    "journalled",
    "judge",
    "keep",
    "keeper",
    "kept",
    "lab",
    "labour",
    "land",
    "leftovers",
    "life",
    "line",
    "link",
    "look",
    "needed",
    "news",
    "note",
    "notes",
    "odd",
    "others",
    "ours",
    "outlet",
    "overlay",
    "owed",
    "pacing",
    "patience",
    "place",
    "play",
    "port",
    "premises",
    "prospect",
    "questions",
    "removal",
    "room",
    "rounds",
    "scene",
    "seat",
    "shop",
    "sit",
    "site",
    "sitting",
    "standing",
    "storm",
    "survey",
    "tickets",
    "told",
    "users",
    "witness",
    "workshop",
];

/// The first folder of a source: its crate, or the crates of one side.
fn crate_of(source: &SourceFile) -> &str {
    source.path.split('/').next().unwrap_or_default()
}

/// Names of types that a crate defines more than [`MOST_USES`] times.
fn ambiguous_types(sources: &[&SourceFile]) -> Vec<Violation> {
    let definition = Regex::new(
        r"(?m)^(?:[ ]*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union)|(?:pub(?:\([^)]*\))? )?type) ([A-Z]\w*)",
    );
    let definition = definition.expect("a pattern");
    let mut uses: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for found in definition.captures_iter(&source.masked.code) {
            uses.entry((crate_of(source), found[1].to_owned())).or_default().push(&source.path);
        }
    }
    uses.into_iter()
        .filter(|(_, paths)| paths.len() > MOST_USES)
        .map(|((_, name), paths)| {
            let what = format!("`{name}` is defined {} times: {}", paths.len(), paths.join(", "));
            Violation::new(paths[0], 0, what)
        })
        .collect()
}

/// Whether a folder or the file of this path has a retired name.
fn retired(source: &SourceFile) -> Option<Violation> {
    let path = source.path.strip_suffix(".rs")?;
    let name = path.split('/').find(|part| RETIRED.contains(part))?;
    Some(Violation::new(&source.path, 0, format!("`{name}` does not describe the content")))
}

#[test]
fn type_names_are_unambiguous_within_a_crate() {
    assert_none(&ambiguous_types(&files::all().iter().collect::<Vec<_>>()));
}

#[test]
fn file_names_say_what_is_inside() {
    assert_none(&files::all().iter().filter_map(retired).collect::<Vec<_>>());
}

#[test]
fn names_rules_catch_violations() {
    let three = "struct State;\nmod a {\n    pub(super) enum State {}\n}\ntype State = u8;\n";
    let two = "impl X {\n    type State = u8;\n}\nstruct State;\nstruct Other;\ntrait State {}\n";
    for (text, violations) in [(three, 1), (two, 0)] {
        let source = SourceFile::new("worker/src/a.rs", text);
        assert_eq!(ambiguous_types(&[&source]).len(), violations, "{text}");
    }
    for (path, is_retired) in [
        ("worker/src/board.rs", true),
        ("worker/src/shop/mod.rs", true),
        ("worker/src/keyboard.rs", false),
        ("docs/board.md", false),
    ] {
        assert_eq!(retired(&SourceFile::new(path, "")).is_some(), is_retired, "{path}");
    }
}
