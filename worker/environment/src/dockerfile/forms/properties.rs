//! Properties of accepted `FROM`, `ARG`, `COPY` and `RUN` lines: small readers, written from the sources of BuildKit,
//! kaniko and buildah and without this module's parser, name no image that the check does not see.

mod readers;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use self::readers::{Arguments, BUILDAH, BUILDERS, BUILDKIT, OtherBuilder, TakenImage, Unread};
use crate::dockerfile::{BuildFetch, BuildFetchKind, Dockerfile, build_fetches};

/// Whether the check accepts a text.
///
/// # Errors
/// It does not see an image that a builder takes from the text.
fn accepted(text: &str, given: &Arguments) -> Result<bool, String> {
    let found = build_fetches(text, given);
    // A number may be the id of an image, which no user of a server names.
    let is_number = |fetch: &BuildFetch| fetch.source.bytes().all(|byte| byte.is_ascii_digit());
    if found.iter().any(|fetch| fetch.kind != BuildFetchKind::Image || is_number(fetch)) {
        return Ok(false);
    }
    let seen: BTreeSet<&str> = found.iter().map(|fetch| fetch.source.as_str()).collect();
    for variant in ["", "v7"] {
        let platform = [("TARGETARCH", "amd64"), ("TARGETOS", "linux"), ("TARGETVARIANT", variant)];
        let platform = platform.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        // kaniko keeps a default where the build argument is empty. It builds for no worker.
        let has_empty = given.values().any(String::is_empty);
        for builder in if has_empty { &[BUILDKIT, BUILDAH][..] } else { &BUILDERS } {
            let mut images = Vec::new();
            let read = builder.add_images(text, (&platform, given), &mut images);
            if matches!(read, Err(Unread::OfSomeReleases)) {
                return Err(format!("{builder:?} reads {text:?} in some releases alone"));
            }
            let unseen = images.iter().find(|taken| !seen.contains(taken.image.as_str()));
            if let Some(image) = unseen {
                return Err(format!(
                    "{builder:?} takes {image:?} from {text:?} with {given:?}: {seen:?}"
                ));
            }
        }
        // Builders differ in whether these build arguments count without an `ARG`.
        let is_set = platform.keys().any(|name| given.contains_key(name));
        for builder in if is_set { &[BUILDKIT][..] } else { &[BUILDKIT, BUILDAH] } {
            let mut images = Vec::new();
            let read = builder.add_images(text, (&platform, given), &mut images);
            if read.is_ok()
                && let Some(image) = other_platform(text, (platform.clone(), given), &images)
            {
                return Err(format!("{builder:?} has {image:?} from {text:?} with {given:?}"));
            }
        }
    }
    Ok(true)
}

/// An image of another platform than the one whose triggers are checked.
fn other_platform<'a>(
    text: &str,
    (mut platform, given): (Arguments, &Arguments),
    images: &'a [TakenImage],
) -> Option<&'a TakenImage> {
    let file = Dockerfile::read(text);
    for (name, value) in &mut platform {
        if let Some(given) = given.get(name) {
            value.clone_from(given);
        }
    }
    // Workers give no here-documents to a builder that takes their lines for instructions.
    if file.has_heredocs() || file.unknown_image(&platform, given).is_some() {
        return None;
    }
    let checked = file.images_of_platform(&platform, given);
    let is_checked = |taken: &TakenImage| {
        let mut bases = checked.iter().filter(|base| base.starts_stage());
        bases.any(|base| base.image == taken.image && base.platform == taken.platform)
    };
    images.iter().find(|taken| taken.starts_stage && !is_checked(taken))
}

/// Beginnings of lines and of words.
const BEGINNINGS: &[&str] = &[
    "ARG A=",
    "ARG B=",
    "ARG A",
    "ARG A= B=",
    "ARG B=$A",
    "ARG A=\"",
    "ARG A='",
    "ARG TARGETARCH=",
    "FROM ",
    "FROM ",
    "FROM \"",
    "FROM $A",
    "FROM ${B:-",
    "FROM --platform=",
    "FROM --platform=$A ",
    "FROM a AS ",
    "FROM scratch AS base\nFROM ",
    "from ",
    "COPY --from=",
    "COPY --chown=",
    "RUN ",
    "RUN --mount=type=bind,from=",
    "# ",
    "\\\n",
    "\n",
    "",
];

/// Parts of words: those of names, variables, quotes, escapes and blanks.
const PARTS: &[&str] = &[
    "a",
    "b/c",
    "h:5000/",
    "10.0.0.5:1/x",
    ":1",
    "@sha256:00",
    ".",
    "-",
    "_",
    "scratch",
    "Base",
    "base",
    "$A",
    "${A}",
    "${B}",
    "$B",
    "${A:-",
    "${A:+",
    "${B:-h:5000/",
    "${TARGETARCH}",
    "$TARGETVARIANT",
    "${TARGETVARIANT:+",
    "${A-",
    "${A#",
    "}",
    "}",
    "}",
    "$",
    "$$",
    "$1",
    "$*",
    "{",
    "\"",
    "\"",
    "'",
    "'",
    "\\",
    "\\\\",
    "\\\n",
    "\\ \n",
    " ",
    "\t",
    "\u{a0}",
    "\u{85}",
    "é",
    "à",
    "<<",
    "<<E",
    "[",
    "]",
    "#",
    "=",
    ",",
    "AS",
];

/// The same for lines that are mostly accepted.
const PLAIN_BEGINNINGS: &[&str] = &[
    "ARG A=",
    "ARG B=",
    "ARG A=\"",
    "ARG A B=",
    "ARG A=b B=",
    "ARG B=a A=",
    "ARG A\nARG B=",
    "ARG TARGETARCH=",
    "FROM ",
    "FROM ",
    "FROM ",
    "FROM \"",
    "FROM a AS base\nFROM ",
    "FROM scratch AS Base\nFROM ",
    "FROM --platform=linux/$TARGETARCH ",
    "ARG TARGETARCH=b\nFROM --platform=linux/$TARGETARCH ",
    "ARG A=c B=$A\nFROM $B",
    "FROM a\nFROM ",
    "FROM --platform=linux/arm64 --platform=$A ",
    "COPY --from=",
    "FROM a AS base\nFROM b\nCOPY --from=",
    "FROM a\nFROM b AS base\nRUN --mount=type=cache,target=/c --mount=from=",
    "FROM a AS base\nFROM a AS base\nFROM b\nCOPY --from=",
];
const PLAIN_PARTS: &[&str] = &[
    "a",
    "b/c",
    "h:5000/x",
    "10.0.0.5:1/x",
    "$A",
    "${A}",
    "$B",
    "${B}",
    "${A:-b}",
    "${B:-h:5000/$A}",
    "${A:+c}",
    "${A:+-${B}}",
    "${B:+h:1/}",
    "$TARGETARCH",
    "${TARGETVARIANT:+h:5000/}",
    "${TARGETOS:-x}",
    "\"\"",
    "\"$A\"",
    "'b'",
    "0",
    "1",
    "Base",
    "base",
    "-",
    "\"",
    "\\\n",
    "/",
    "}",
];

/// A line of a beginning and less than `count` parts.
fn lines(
    beginnings: &'static [&'static str],
    parts: &'static [&'static str],
    count: usize,
) -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(prop::sample::select(parts), 0..count);
    let line = (prop::sample::select(beginnings), parts);
    line.prop_map(|(begun, parts)| format!("{begun}{}", parts.concat()))
}

fn texts() -> impl Strategy<Value = String> {
    let line = (lines(PLAIN_BEGINNINGS, PLAIN_PARTS, 3), lines(BEGINNINGS, PARTS, 6));
    let line = (line, prop::sample::select(vec![true, true, true, true, false]));
    let line = line.prop_map(|((plain, other), is_plain)| if is_plain { plain } else { other });
    let end = prop::sample::select(vec!["\n", "\n", "\n", "\r\n", "\nFROM a\n"]);
    let lines = prop::collection::vec((line, end), 1..6);
    lines.prop_map(|lines| lines.into_iter().map(|(line, end)| line + end).collect())
}

fn arguments() -> impl Strategy<Value = Arguments> {
    let name = prop::sample::select(vec!["A", "B", "TARGETARCH", "TARGETVARIANT"]);
    let value = prop::sample::select(vec!["", "a", "h:5000/x", "10.0.0.5/"]);
    prop::collection::btree_map(name.prop_map(str::to_owned), value.prop_map(str::to_owned), 0..3)
}

/// Random texts in a run.
const CASES: u32 = 256;

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() })]

    #[test]
    fn image_of_an_accepted_text_is_seen_for_every_builder(text in texts(), given in arguments()) {
        let accepted = accepted(&text, &given);
        prop_assert!(accepted.is_ok(), "{:?}", accepted);
    }
}

/// Texts of [`generated_texts_with_images_are_accepted`], the same in each run.
const COUNTED: usize = 400;

/// The least number of them that are accepted and take an image: a third of the expected one.
const LEAST_ACCEPTED: usize = 8;

/// The property holds for every text that is refused, so that it would also hold for a check that refuses all.
#[test]
fn generated_texts_with_images_are_accepted() {
    let mut runner = TestRunner::deterministic();
    let generated = (texts(), arguments());
    let mut count = 0;
    for _ in 0..COUNTED {
        let (text, given) = generated.new_tree(&mut runner).expect("a text").current();
        let has_image = !build_fetches(&text, &given).is_empty();
        count += usize::from(has_image && accepted(&text, &given) == Ok(true));
    }
    assert!(count >= LEAST_ACCEPTED, "{count} of {COUNTED} texts are accepted");
}

#[test]
fn readers_take_the_images_of_plain_texts() {
    let given = Arguments::from([("B".to_owned(), "b/c".to_owned())]);
    let text = "ARG A=1 B\nARG C=\"${B}:$A\"\nFROM \"$C\" AS own\nFROM own\nFROM a${X:+-$A}\n";
    for builder in BUILDERS {
        let mut images = Vec::new();
        let read = builder.add_images(text, (&Arguments::new(), &given), &mut images);
        assert!(read.is_ok(), "{builder:?}");
        let names: Vec<&str> = images.iter().map(|taken| taken.image.as_str()).collect();
        assert_eq!(names, ["b/c:1", "a"], "{builder:?}");
    }
    assert_eq!(accepted(text, &given), Ok(true));
}

#[test]
fn readers_take_the_sources_of_plain_texts() {
    let none = Arguments::new();
    let taken = |text: &str, builder: OtherBuilder| {
        let mut images = Vec::new();
        assert!(builder.add_images(text, (&none, &none), &mut images).is_ok(), "{builder:?}");
        images.into_iter().map(|taken| taken.image).collect::<Vec<_>>()
    };
    let text = "FROM a AS b\nFROM c\nCOPY --from=b /x /y\nCOPY --from=0 /x /y\nCOPY --from=d/e /x /y\n\
                RUN --mount=type=bind,from=f:1,target=/m true\n";
    for builder in BUILDERS {
        assert_eq!(taken(text, builder), ["a", "c", "d/e", "f:1"], "{builder:?}");
    }
    assert_eq!(accepted(text, &none), Ok(true));
    let repeated = "FROM a AS b\nFROM c AS b\nCOPY --from=b /x /y\n";
    assert_eq!(taken(repeated, BUILDKIT), ["a", "c"]);
    assert_eq!(taken(repeated, BUILDAH), ["a", "c", "b"]);
    assert_eq!(accepted(repeated, &none), Ok(true), "an image of the name is seen");
}
