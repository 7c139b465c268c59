//! Tests of what builds fetch.

use super::BuildFetchKind::{Address, Frontend, Image, Unclear};
use super::*;

const NO_IMAGE: BuildFetchKind = Unclear(UnclearForm::NoImage);

fn fetches(text: &str) -> Vec<(BuildFetchKind, String)> {
    let found = build_fetches(text, &BTreeMap::new());
    found.into_iter().map(|fetch| (fetch.kind, fetch.source)).collect()
}

#[test]
fn images_of_every_instruction_are_fetched() {
    let text = "ARG REGISTRY=h:5000\nARG NOTHING\nFROM $REGISTRY/a AS one\n\
                FROM 127.0.0.1:5000/b-$TARGETARCH$NOTHING\nCOPY --from=c/d /x /y\n\
                RUN --mount=type=bind,from=e/f true\nCOPY --from=one /x /z\nFROM scratch\n";
    let images = ["h:5000/a", "127.0.0.1:5000/b-", "127.0.0.1:5000/b-amd64", "c/d", "e/f"];
    assert_eq!(fetches(text), images.map(|image| (Image, image.to_owned())));
    let text = "ARG TARGETPLATFORM=h/x\nFROM $TARGETPLATFORM\n";
    assert!(fetches(text).contains(&(Image, "h/x".to_owned())));
    let text = "FROM a\nONBUILD COPY --from=h/b /x /y\nONBUILD ADD http://h/x /\n";
    let found = [(Image, "a"), (Image, "h/b"), (Address, "http://h/x")];
    assert_eq!(fetches(text), found.map(|(kind, source)| (kind, source.to_owned())));
    let text = "ARG B=\nARG A=<< B=127.0.0.1:18901/\nFROM ${B}debian\n";
    let found = fetches(text);
    assert_eq!(found, [(Image, "127.0.0.1:18901/debian".to_owned())]);
}

#[test]
fn dockerfile_is_preprocessed_by_the_end_of_its_name() {
    for path in ["D.in", "a/D.in", "D.in/", "D.in//", "D.in/.", "./D.in/./", ".in", "../D.in"] {
        assert!(is_preprocessed(Path::new(path)), "{path}");
    }
    for path in ["", "Dockerfile", "Din", "D.in.x", "D.in/Dockerfile", "D.IN"] {
        assert!(!is_preprocessed(Path::new(path)), "{path}");
    }
}

#[test]
fn image_of_a_platform_with_a_variant_is_fetched() {
    let inner = (Image, "127.0.0.1:18901/pfv/debian".to_owned());
    for text in [
        "FROM ${TARGETVARIANT:+127.0.0.1:18901/pfv/}debian\n",
        "FROM ${BUILDVARIANT:+127.0.0.1:18901/pfv/}debian\n",
        "ARG A=${TARGETVARIANT:+127.0.0.1:18901/pfv/}\nFROM ${A}debian\n",
        "FROM --platform=linux/arm/v7 ${TARGETVARIANT:+127.0.0.1:18901/pfv/}debian\n",
        "FROM ${TARGETVAR\\\nIANT:+127.0.0.1:18901/pfv/}debian\n",
        "FROM ${TARGETVARIANT:+${BUILDVARIANT:-127.0.0.1:18901/pfv/}}debian\n",
        "FROM ${BUILDVARIANT:+${TARGETVARIANT:-127.0.0.1:18901/pfv/}}debian\n",
        "FROM ${BUILDVARIANT:+${TARGETVARIANT:+127.0.0.1:18901/pfv/}}debian\n",
    ] {
        assert!(fetches(text).contains(&inner), "{text}: {:?}", fetches(text));
    }
    let variant = |value: &str| BTreeMap::from([("TARGETVARIANT".to_owned(), value.to_owned())]);
    let text = "ARG TARGETVARIANT\nFROM debian:12$TARGETVARIANT\n";
    let images = |args: &BTreeMap<String, String>| {
        build_fetches(text, args).into_iter().map(|fetch| fetch.source).collect::<Vec<_>>()
    };
    assert_eq!(images(&variant("")), ["debian:12"]);
    assert_eq!(images(&variant("v8")), ["debian:12v8"]);
    assert_eq!(images(&BTreeMap::new()), ["debian:12", "debian:12v7"]);
}

#[test]
fn stage_whose_name_builders_refuse_is_an_image() {
    let unclear = (Unclear(UnclearForm::StageName), "FROM".to_owned());
    for text in [
        "FROM scratch AS 127.0.0.1:18901/x\nFROM 127.0.0.1:18901/x\n",
        "FROM scratch AS 127.0.0.1:18901/x\nCOPY --from=127.0.0.1:18901/x / /\n",
        "FROM scratch AS 127.0.0.1:18901/x\nRUN --mount=from=127.0.0.1:18901/x,target=/x :\n",
    ] {
        let image = (Image, "127.0.0.1:18901/x".to_owned());
        assert_eq!(fetches(text), [unclear.clone(), image], "{text}");
    }
    let numbered = "FROM scratch AS 10.0.0.1\nFROM 10.0.0.1\n";
    assert_eq!(fetches(numbered), [unclear, (Image, "10.0.0.1".to_owned())]);
    let plain = "FROM scratch AS A-1_b.c\nFROM A-1_b.c\nCOPY --from=A-1_b.c /a /b\n";
    assert!(fetches(plain).is_empty(), "{:?}", fetches(plain));
}

#[test]
fn stage_that_some_builder_does_not_know_is_an_image() {
    for (text, image) in [
        ("FROM scratch AS Ada\nCOPY --from=ada /a /b\n", "ada"),
        ("FROM scratch AS ada\nRUN --mount=from=ADA,target=/m true\n", "ADA"),
        ("FROM Scratch\n", "Scratch"),
        ("FROM scratch\nCOPY --from=12345 /a /b\n", "12345"),
        ("FROM scratch\nCOPY --from=0 /a /b\n", "0"),
        ("FROM scratch\nCOPY --from=18446744073709551615 /a /b\n", "18446744073709551615"),
        ("FROM scratch\nFROM scratch\nCOPY --from=00 /a /b\n", "00"),
        ("FROM scratch\nFROM scratch\nRUN --mount=from=0,target=/m true\n", "0"),
        ("FROM scratch AS ab\nCOPY --from=ab / /x\n", "ab"),
        ("FROM scratch AS ab\nRUN --mount=from=ab,target=/m true\n", "ab"),
        ("FROM scratch AS ab\nFROM scratch AS ab\nCOPY --from=ab / /x\n", "ab"),
        ("FROM scratch AS ab\nFROM scratch AS ab\nRUN --mount=from=ab,target=/m true\n", "ab"),
        ("FROM scratch AS ab\nFROM scratch AS ab\nCOPY --from=0 / /x\n", "0"),
        ("FROM scratch AS ab\nFROM scratch\nCOPY --from=ab / /x\nFROM scratch AS ab\n", "ab"),
        ("FROM \"ab\" AS ab\n", "ab"),
    ] {
        assert_eq!(fetches(text), [(Image, image.to_owned())], "{text}");
    }
    for base in [
        "FROM scratch AS Ada\nFROM ada\n",
        "FROM scratch AS ab\nFROM scratch AS ab\nFROM ab\n",
        "FROM scratch AS ab\nFROM \"ab\"\nFROM scratch AS ab\n",
    ] {
        let unclear = (Unclear(UnclearForm::UnknownStage), "FROM".to_owned());
        assert_eq!(fetches(base), [unclear], "{base}");
    }
    let earlier =
        "FROM scratch\nFROM scratch\nFROM scratch\nCOPY --from=0 /a /\nCOPY --from=1 /b /\n";
    assert!(fetches(earlier).is_empty(), "{:?}", fetches(earlier));
    let named = "FROM scratch AS ab\nFROM ab AS cd\nCOPY --from=ab / /x\nFROM scratch\n\
                 RUN --mount=from=ab,target=/m true\nCOPY --from=cd / /x\n";
    assert!(fetches(named).is_empty(), "{:?}", fetches(named));
    let quoted = "FROM scratch AS ab\nFROM \"ab\"\nCOPY --from=ab / /x\n";
    assert!(fetches(quoted).is_empty(), "{:?}", fetches(quoted));
    // Without here-documents, a builder may give the second stage the name of the first.
    let script = "FROM scratch AS ab\nRUN <<E\nFROM scratch AS a${X:-b}\nCOPY --from=ab / /x\nE\n";
    assert_eq!(fetches(script), [(Image, "ab".to_owned())]);
    let variable = "FROM scratch AS ab\nFROM a$X\nCOPY --from=ab / /x\n";
    assert_eq!(fetches(variable), [(Image, "a".to_owned())]);
    let same = "FROM debian AS debian\nFROM debian\nCOPY --from=debian /a /b\n";
    assert_eq!(fetches(same), [(Image, "debian".to_owned())], "the image of the first stage");
}

#[test]
fn images_of_every_way_to_set_arguments_are_fetched() {
    let inner = "127.0.0.1:18901/x";
    let images = |text: &str, name: &str, value: &str| {
        let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let found = build_fetches(text, &given).into_iter();
        found.map(|fetch| fetch.source).collect::<Vec<_>>()
    };
    // A build argument without an `ARG` is set for some builders.
    let text = format!("FROM ${{A:-{inner}}}\n");
    assert_eq!(images(&text, "A", "debian"), [inner, "debian"]);
    let text = format!("ARG B=${{A:-{inner}}}\nFROM $B\n");
    assert_eq!(images(&text, "A", "debian"), [inner, "debian"]);
    // An `ARG` changes one platform argument, and the builder sets another one.
    let text = "ARG TARGETARCH=.1:18901/x\nFROM 127.0.0$TARGETARCH-$TARGETOS\n";
    let mixed = format!("{inner}-linux");
    assert!(images(text, "A", "").contains(&mixed), "{:?}", images(text, "A", ""));
    assert!(images("FROM a-$TARGETOS\n", "TARGETOS", "b").contains(&"a-b".to_owned()));
}

#[test]
fn build_arguments_choose_images() {
    let args = BTreeMap::from([("BASE".to_owned(), "h:1/x".to_owned())]);
    let found = build_fetches("ARG BASE=debian\nFROM $BASE\n", &args);
    assert_eq!(found[0].source, "h:1/x");
}

#[test]
fn image_whose_name_is_empty_is_unclear() {
    let args = BTreeMap::from([("BASE".to_owned(), String::new())]);
    let found = build_fetches("ARG BASE=debian\nFROM $BASE\n", &args);
    assert_eq!((found.len(), found[0].kind, &*found[0].written), (1, NO_IMAGE, "$BASE"));
    assert_eq!(fetches("ARG B\nFROM $B\n"), [(NO_IMAGE, "FROM".to_owned())]);
    let text = "FROM a AS amd64\nFROM b AS arm64\nFROM $TARGETARCH\n";
    assert_eq!(fetches(text), [(Image, "a".to_owned()), (Image, "b".to_owned())]);
}

#[test]
fn dockerfile_of_many_stages_triggers_and_growing_arguments_is_read_in_time() {
    let (text, started) = (long_dockerfile(), std::time::Instant::now());
    let found = fetches(&text);
    assert!(found.contains(&(Image, "a".to_owned())) && found.len() < 60_000);
    assert!(found.iter().all(|(_, source)| source.len() < 5_000));
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

/// 40,000 stages and triggers, and arguments of which each has the one before 300 times.
fn long_dockerfile() -> String {
    let arguments = (1..20).map(|n| {
        let before = format!("${{A{}}}", n - 1);
        format!("ARG A{n}={}\n", before.repeat(300))
    });
    let arguments = arguments.collect::<String>();
    let stages = (0..40_000).map(|n| format!("FROM a AS b{n}\nONBUILD COPY x /x\n"));
    format!("ARG A0=0123456789\n{arguments}FROM $A19\n{}", stages.collect::<String>())
}

#[test]
fn addresses_of_add_are_found_however_they_are_written() {
    for source in [
        "http://h/x",
        "HTTPS://h/x",
        "h\"ttp\"://h/x",
        "'https://h/x'",
        "ht\\tp://h/x",
        "git@h:r/x.git",
        "https://h/r.git#main",
        "ssh://h/r",
        "github.com/a/b",
        "$URL",
        "${URL:-a}/x",
        "http:$REST",
        "http:/$REST",
        "ht${X}p://h",
        "${A#b}",
        "http://169.254.169.254/x\\",
        "http://10.0.0.1/f<<",
        "http:$*//10.0.0.1:8080/",
        "http:$é//10.0.0.1/",
        "http:${X+y}//169.254.169.254/",
    ] {
        let text = format!("FROM a\nADD --chmod=644 x {source} /x\n");
        assert_eq!(fetches(&text).len(), 2, "{source}: {:?}", fetches(&text));
    }
    for text in [
        "FROM a\nADD [\"http://h/x\", \"/x\"]\n",
        "FROM a\nADD \\\n  http://h/x \\\n  /x\n",
        "FROM a\nadd http://h/x /x\n",
    ] {
        assert_eq!(fetches(text).len(), 2, "{text}");
    }
    let quoted = fetches("FROM a\nADD \"${x:-'}\"'}\" http://10.0.0.1/f '/y'\n");
    assert!(quoted.contains(&(Address, "http://10.0.0.1/f".to_owned())), "{quoted:?}");
}

#[test]
fn instructions_that_builders_read_in_different_ways_are_found() {
    for line in [
        "COPY --fr\\om=h/x /a /b",
        "COPY --\"from\"=h/x /a /b",
        "COPY --from h/x /a /b",
        "COPY --chown=10.0.0.1:5000/x--from a /b",
        "COPY --chown--from=10.0.0.1:5000/x a /b",
        "COPY --chown=\"a b\" --from=h/x /a /b",
        "RUN --mo\\unt=type=bind,from=h/x,target=/m true",
        "RUN --mount=type=cache,target=\"/a b\" --mount=type=bind,from=h/x,target=/m true",
        "ONBUILD ONBUILD ADD http://h/x /x",
        "COPY <<#\\E /f\nx \\\n#E\nADD http://h/x /x\nRUN true \\\n#\\E",
        "COPY ${A:-<<#E} /f\nx \\\n#E\nADD http://h/x /x",
        "COPY ${A:-<}<#E /f\nx \\\n#E\nADD http://h/x /x",
        "COPY ${A+x \"y\"}<<#E /f\nx \\\n#E\nADD http://h/x /x",
        "ONBUILD RUN cat <<\"#E\"\nx \\\n#E\nADD http://h/x /x",
        "ADD [\"\\u0068ttp:\\u002f\\u002fh/x?\\ud800\", \"/x\"]",
        "ONBUILD COPY [\"\\ud800\", \"/x\"]",
        "COPY --chown=à--from=10.0.0.5:5000/x /a /b",
        "COPY --exclude=à--from=10.0.0.5:5000/x /a /b",
        "RUN --mount=type=tmpfs,target=/à--mount=from=10.0.0.5:5000/x,target=/m cat /m/f",
        "RUN : \"${x:-'}\"'}\" <<'B\\'\nRUN <<CMD\nB\\\nADD http://h/x /x\nCMD",
        "ADD <<$EOF /x\n$EOF",
    ] {
        let found = fetches(&format!("FROM a\n{line}\n"));
        assert!(found.iter().any(|(kind, _)| matches!(kind, Unclear(_))), "{line}: {found:?}");
    }
    for text in [
        "RUN cat <<E\\OF\nx\nEOF\nADD http://h/x /x\nRUN true \\\nE\\OF\n",
        "RUN : <<EOF\nADD http://h/x /x\nRUN \\\nEOF\n",
        "RUN cat << EOF\nADD http://h/x /x\nEOF\n",
    ] {
        let found = fetches(&format!("FROM a\n{text}"));
        assert!(found.contains(&(Address, "http://h/x".to_owned())), "{text}: {found:?}");
    }
    for plain in [
        "COPY --link --chmod=755 x /x\nRUN --mount=type=cache,target=/c true\n",
        "RUN cat <<'EOF' > /x && python3 3<<-\"B_1\"\nEOF\nB_1\nRUN cat << EOF\nEOF\n",
        "RUN cat <<<x && echo $((1<<2)) \"1 << #2\" ${A:-b} < /x > /y\n",
        "RUN echo \"<a>${X}</a><b/>\" '<<${Y}'\n",
        "RUN <<EOF\n./run.sh --device cuda\nyum --security -y update\ntool --network=host\nEOF\n",
        "RUN [ \"$A\" = b ] || true\nCOPY [ab].txt /x/\nCOPY [\"a\", \"b\"]\n",
    ] {
        let found = fetches(&format!("FROM a\n{plain}"));
        assert_eq!(found.len(), 1, "{plain}: {found:?}");
    }
}

#[test]
fn line_of_a_script_that_names_no_image_is_not_fetched() {
    for line in [
        "FROM (SELECT 1) t",
        "FROM users, orders",
        "FROM \"Users\";",
        "from . import x",
        "from .a import (b,",
        "FROM Debian AS x",
        "FROM a/../h:1/x",
        "from é import x",
    ] {
        for begun in ["COPY <<EOF /init.sql", "RUN python3 <<EOF"] {
            let text = format!("FROM a\n{begun}\n{line}\nEOF\n");
            assert_eq!(fetches(&text), [(Image, "a".to_owned())], "{text}");
        }
        assert!(fetches(&format!("FROM a\n{line}\n")).len() > 1, "{line}: no script");
    }
    for (line, image) in [
        ("FROM 127.0.0.1:18901/x", "127.0.0.1:18901/x"),
        ("FROM \"127.0.0.1:18901/x\"", "127.0.0.1:18901/x"),
        ("FROM 127.0.0.1:18901\\/x", "127.0.0.1:18901/x"),
        ("FROM -- 127.0.0.1:18901/x", "127.0.0.1:18901/x"),
        ("FROM -- \"127.0.0.1:18901/x\" AS y", "127.0.0.1:18901/x"),
        ("FROM [::1]:5000/x,y", "[::1]:5000/x,y"),
        ("FROM ${X?}127.0.0.1:18901/x", "${X?}127.0.0.1:18901/x"),
        ("FROM à127.0.0.1:18901/x", "à127.0.0.1:18901/x"),
    ] {
        let found = fetches(&format!("FROM a\nRUN <<EOF\n{line}\nEOF\n"));
        let is_refused = line.contains(',');
        assert_ne!(found.contains(&(Image, image.to_owned())), is_refused, "{line}: {found:?}");
    }
}

#[test]
fn line_that_ends_in_two_escape_characters_is_unclear() {
    for text in [
        "FROM scratch\nADD x \\\\\nhttp://127.0.0.1:18901/bs1 /\n",
        "FROM scratch\nADD x \\\\\n  http://127.0.0.1:18901/bs2 /\n",
        "FROM \\\\\n127.0.0.1:18901/bs3\n",
        "FROM scratch\nCOPY \\\\\n--from=127.0.0.1:18901/bs4 / /\n",
        "FROM scratch\nCOPY a \\\\ \t\n/b\n",
        "# escape=`\nFROM scratch\nADD x ``\nhttp://127.0.0.1:18901/bs1 /\n",
    ] {
        let found = fetches(text);
        assert!(found.iter().any(|(kind, _)| matches!(kind, Unclear(_))), "{text}: {found:?}");
    }
    let joined = "FROM a\nRUN <<E\nADD x \\\\\nhttp://h/x /\nE\n";
    let expected = [(Image, "a"), (Address, "\\http://h/x")];
    let expected = expected.map(|(kind, source)| (kind, source.to_owned()));
    assert_eq!(fetches(joined), expected, "lines of a here-document");
    let plain = "FROM a\nRUN cat <<E > /x\na \\\\\nb\nE\nRUN echo \\\\ b && \\\n  true\n";
    assert_eq!(fetches(plain).len(), 1, "{:?}", fetches(plain));
}

#[test]
fn files_of_context_are_not_fetched() {
    for source in ["x", "./x$Y", "dir/${NAME}.tar", "/x", "a.b/c@d", "\"x\"", "x.tar.gz y=1"] {
        let text = format!("FROM a\nADD {source} /x\n");
        assert_eq!(fetches(&text).len(), 1, "{source}: {:?}", fetches(&text));
    }
    assert_eq!(fetches("FROM a\nADD x http://is-a-target\n").len(), 1);
    assert_eq!(fetches("FROM a\nRUN curl http://h/x\n").len(), 1);
}

#[test]
fn frontends_are_found_in_every_form() {
    for text in [
        "# syntax=h/f:1\nFROM a\n",
        "#syntax = h/f:1 more words\nFROM a\n",
        "# escape=`\n# SYNTAX=h/f:1\nFROM a\n",
        "#!/usr/bin/env x\n# syntax=h/f:1\nFROM a\n",
        "\u{feff}# syntax=h/f:1\nFROM a\n",
        "// syntax=h/f:1\nFROM a\n",
        "{\"syntax\": \"h/f:1\"}",
        "#!/usr/bin/env x\n{\"syntax\": \"h/f:1\"}\n",
        "{\"syntax\": \"docker/dockerfile\", \"syntax\": \"h/f:1\"}",
        "{\"Syntax\": \"h/f:1\"}",
        "#!/usr/bin/env x\n// syntax=h/f:1\nFROM a\n",
        "# a=b\n# syntax=h/f:1\nFROM a\n",
        "# syntax=docker/dockerfile:1\n\n# Syntax = h/f:1\nFROM a\n",
    ] {
        let found = fetches(text);
        assert!(found.contains(&(Frontend, "h/f:1".to_owned())), "{text}: {found:?}");
    }
    for text in [
        "{\"syntax\": \"h/f:1\", \"x\": \"\\ud800\"}",
        "\u{feff}#!/bin/x\n \n{\"x\": \"\\ud800\"}",
        &*format!("{{\"syntax\": \"h/f:1\", \"x\": {}{}}}", "[".repeat(200), "]".repeat(200)),
    ] {
        let found = fetches(text);
        assert!(found.contains(&(Frontend, "JSON".to_owned())), "{text}: {found:?}");
    }
    assert_eq!(fetches("FROM a\n# syntax=h/f:1\n").len(), 1);
}

#[test]
fn heredoc_for_a_frontend_that_has_none_is_unclear() {
    let heredoc = "FROM a\nRUN <<CMD\nFROM b\nCMD\n";
    let old = (Unclear(UnclearForm::OldFrontend), "RUN".to_owned());
    for tag in ["1.2", "1.2.1", "1.2-labs", "1.3", "1.3.1"] {
        for begun in ["# syntax=docker/dockerfile", "// syntax=docker.io/docker/dockerfile"] {
            let found = fetches(&format!("{begun}:{tag}\n{heredoc}"));
            assert!(found.contains(&old), "{begun}:{tag}: {found:?}");
        }
        let found = fetches(&format!("# syntax=docker/dockerfile:{tag}\nFROM a\nRUN b\n"));
        assert_eq!(found.len(), 2, "{tag}: {found:?}");
    }
    for tag in ["", ":1", ":1-labs", ":1.3-labs", ":1.4", ":1.10.0", ":latest"] {
        let found = fetches(&format!("# syntax=docker/dockerfile{tag}\n{heredoc}"));
        assert!(!found.contains(&old), "{tag}: {found:?}");
    }
}

/// Texts of which one builder takes `\` and another a backtick for the escape character.
#[test]
fn escape_character_of_another_reader_is_unclear() {
    for text in [
        " # escape=`\nFROM a\nRUN true \\\nADD http://10.0.0.1/x /x\n",
        "#!/bin/x\n# escape=`\nFROM a\nRUN true # `\nADD http://10.0.0.1/x /x\n",
        "#\u{a0}escape=`\nFROM a\nRUN true `\nADD http://10.0.0.1/x /x\n",
        "# syntax=docker/dockerfile:1.1\n# escape=`\nFROM a\nRUN true `\nADD http://10.0.0.1/x /x\n",
    ] {
        let found = fetches(text);
        let escape = (Unclear(UnclearForm::EscapeDirective), "escape".to_owned());
        assert!(found.contains(&escape), "{text}: {found:?}");
    }
}
