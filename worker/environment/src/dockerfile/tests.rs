use super::*;

fn names(text: &str) -> Vec<(usize, String, usize)> {
    let file = Dockerfile::read(text);
    let each = file.instructions.into_iter();
    each.map(|one| (one.line, one.name, one.heredocs)).collect()
}

fn problems(text: &str) -> Vec<String> {
    Dockerfile::read(text).problems.iter().map(ToString::to_string).collect()
}

#[test]
fn dockerfile_continued_lines_join_over_comments() {
    let text = "\u{feff}# a comment\nFROM a\nRUN one \\\n# between\n\n  && two \\  \n  three\n\
                run four\\\\\nENV A=b\n";
    let file = Dockerfile::read(text);
    assert_eq!(file.problems, []);
    let rest: Vec<_> = file.instructions.iter().map(|one| (one.line, one.rest.as_str())).collect();
    assert_eq!(rest, [(2, "a"), (3, "one   && two   three"), (8, "four\\\\"), (9, "A=b")]);
}

#[test]
fn dockerfile_directives_count_only_at_top() {
    let text = "# syntax=docker/dockerfile:1.7-labs extra\n# escape=`\nFROM a\nRUN b `\n c\n\
                COPY x C:\\\nUSER y\n";
    let file = Dockerfile::read(text);
    assert_eq!(file.syntax, Some((1, "docker/dockerfile:1.7-labs".to_owned())));
    assert_eq!((file.escape, file.instructions.len()), ('`', 4));
    for late in ["FROM a\n# syntax=b\n", "\n# syntax=b\nFROM a\n", "# x\n# syntax=b\nFROM a\n"] {
        assert_eq!(Dockerfile::read(late).syntax, None, "{late}");
    }
    let twice = "# syntax=a\n# syntax=b\n# escape=x\nFROM a\n";
    assert_eq!(
        problems(twice),
        ["line 2: duplicate directive `syntax`", "line 3: `x` cannot be the escape character"]
    );
}

#[test]
fn dockerfile_heredoc_lines_are_not_instructions() {
    let text = "FROM a\nRUN <<EOF\nENV x=y\n  EOF\nEOF\nCOPY --chmod=755 <<-\"A\" <<B /x/\n\tone\n\tA\n\
                two\nB\nRUN cat <<<here\nONBUILD RUN <<E\necho\nE\nRUN [\"a\", \"<<E\"]\nLABEL <<E=1\n";
    let expected = [
        (1, "FROM", 0),
        (2, "RUN", 1),
        (6, "COPY", 2),
        (11, "RUN", 0),
        (12, "ONBUILD", 1),
        (15, "RUN", 0),
        (16, "LABEL", 0),
    ];
    assert_eq!(names(text), expected.map(|(line, name, n)| (line, name.to_owned(), n)));
    assert_eq!(problems(text), [""; 0]);
    assert!(Dockerfile::read(text).has_heredocs());
    let open = "FROM a\nRUN <<EOF\necho\n";
    assert_eq!(problems(open), ["line 2: the here-document `EOF` is not closed"]);
}

// Since BuildKit 0.22.
#[test]
fn dockerfile_heredoc_delimiter_after_blanks_is_read() {
    let text = "FROM a\nRUN cat > /b << 'EOF' && c\nFROM d\nEOF\nRUN 3<<\t-E\necho\n-E\n";
    let expected = [(1, "FROM", 0), (2, "RUN", 1), (5, "RUN", 1)];
    assert_eq!(names(text), expected.map(|(line, name, n)| (line, name.to_owned(), n)));
    assert_eq!(problems(text), [""; 0]);
    assert_eq!(problems("FROM a\nRUN a <<< b '<< c'\n"), [""; 0]);
}

#[test]
fn dockerfile_problem_is_reported_with_line() {
    for (text, expected) in [
        ("", "line 1: the Dockerfile has no instruction"),
        ("ARG A\n", "line 1: the Dockerfile has no FROM"),
        ("RUN a\nFROM b\n", "line 1: only ARG is allowed before the first FROM"),
        ("FROM a\nAPT-GET install x\n", "line 2: `APT-GET` is not an instruction"),
        ("FROM a\nRUN\n", "line 2: RUN needs an argument"),
        ("FROM a b\n", "line 1: FROM must be `FROM IMAGE` or `FROM IMAGE AS NAME`"),
        ("FROM a\nCOPY --form=b c d\n", "line 2: COPY has no flag `--form`"),
        ("FROM a\nCOPY [\"only\"]\n", "line 2: COPY needs a source and a target"),
        ("FROM a\nSHELL bash\n", "line 2: SHELL needs a JSON list"),
    ] {
        assert_eq!(problems(text), [expected], "{text}");
    }
    let fine = "ARG A=b\nFROM --platform=$BUILDPLATFORM a AS x\nRUN --mount=type=cache,target=/c \
                --network=none y\nCOPY --link --parents --exclude=*.md a /b\nCMD\nHEALTHCHECK \
                --start-interval=1s CMD x\nADD --keep-git-dir=true --checksum=sha256:0 u /v\n";
    assert_eq!(problems(fine), [""; 0]);
}

#[test]
fn dockerfile_base_images_exclude_own_stages() {
    let text = "ARG BASE=debian TAG\nARG FULL=${BASE}:12\nFROM --platform=linux/amd64 $FULL AS one\n\
                FROM $BASE:$TAG\nFROM one AS two\nFROM scratch\nCOPY --from=one a b\nCOPY --from=0 a b\n\
                COPY --chmod=1 --from=host:5000/x/y:1 a b\n\
                RUN --mount=type=bind,from=two,target=/a --mount=from=z@sha256:00,target=/b c\n\
                from \\\n  last:1 as end\n";
    let images = |args: &[(&str, &str)]| {
        let args = args.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Dockerfile::read(text).base_images(&args)
    };
    let shown = |found: &[BaseImage]| -> Vec<(usize, String)> {
        found.iter().map(|base| (base.line, base.image.clone())).collect()
    };
    let named = |line: usize, image: &str| (line, image.to_owned());
    let without = images(&[]);
    let expected = [
        named(3, "debian:12"),
        named(9, "host:5000/x/y:1"),
        named(10, "z@sha256:00"),
        named(11, "last:1"),
    ];
    assert_eq!(shown(&without), expected);
    let with = images(&[("TAG", "13"), ("BASE", "ubuntu")]);
    assert_eq!(shown(&with)[..2], [named(3, "ubuntu:12"), named(4, "ubuntu:13")]);

    let pins = without.into_iter().map(|base| {
        let pin = format!("{}@sha256:11", base.image);
        (base, pin)
    });
    let pinned = with_images(text, &pins.collect::<Vec<_>>());
    assert!(
        pinned.contains("FROM --platform=linux/amd64 debian:12@sha256:11 AS one\n"),
        "{pinned}"
    );
    assert!(pinned.contains("--from=host:5000/x/y:1@sha256:11 a b\n"), "{pinned}");
    assert!(pinned.contains("  last:1@sha256:11 as end\n"), "{pinned}");
    assert!(pinned.contains("FROM $BASE:$TAG\nFROM one AS two\nFROM scratch\n"), "{pinned}");
    assert_eq!(pinned.lines().count(), text.lines().count());
}
