//! Tests of the second check of images and builds.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;

use rollout_protocol::spec::environment::DockerSettings;
use serde_json::json;

use super::super::rules;
use super::*;

/// An image of a registry that no user of a server may use.
const INNER: &str = "127.0.0.1:18901/x";

/// The environment's own image.
const OWN: &str = "rollout/task:0123";

/// A Dockerfile whose base image an argument chooses.
const CHOSEN: &str = "ARG BASE=debian\nFROM $BASE\n";

/// Addresses of the names that these tests use.
fn look_up(name: &str) -> Result<Vec<IpAddr>, &'static str> {
    match name {
        "public.example" => Ok(vec![Ipv4Addr::new(8, 8, 8, 8).into()]),
        "localhost" | "127.1" => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        "inner.example" => Ok(vec![Ipv4Addr::new(10, 0, 0, 1).into()]),
        _ => Ok(Vec::new()),
    }
}

/// A context with these files, and its path without links.
fn context(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().canonicalize().expect("a path");
    for (name, text) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("below")).expect("made");
        fs::write(path, text).expect("written");
    }
    (dir, root)
}

fn access(registries: &[&str]) -> ImageAccess {
    let allowed_registries = registries.iter().map(|rule| rule.parse().expect("a rule")).collect();
    let guarded = DockerSettings { guards_builds: true, ..DockerSettings::default() };
    ImageAccess::of_docker(&DockerSettings { allowed_registries, ..guarded })
}

/// The check of a resolved file in which `ROOT` stands for the context.
fn checked(root: &Path, access: &ImageAccess, model: &Value) -> Result<(), ModelRefusal> {
    let text = model.to_string().replace("ROOT", root.to_str().expect("UTF-8"));
    let model = serde_json::from_str(&text).expect("JSON");
    ModelGuard { access, own: OWN, root, look_up: &look_up }.check(&model)
}

fn with_build(build: &Value) -> Value {
    json!({"services": {"main": {"image": OWN}, "db": {"build": build}}})
}

/// The refusal of a build of `ROOT/b` with this Dockerfile and these arguments.
fn built(dockerfile: &str, args: &Value) -> Option<String> {
    let (_dir, root) = context(&[("b/Dockerfile", dockerfile)]);
    let build = json!({"context": "ROOT/b", "dockerfile": "Dockerfile", "args": args});
    let refusal = checked(&root, &access(&[]), &with_build(&build)).err()?;
    assert_eq!(refusal.kind, FailureKind::Refused, "{dockerfile}: {refusal}");
    let text = refusal.to_string();
    assert!(text.starts_with("service `db`: `build`: "), "{text}");
    assert!(!text.contains(root.to_str().expect("UTF-8")), "{text}");
    Some(text)
}

#[test]
fn image_of_service_is_public_listed_or_the_own_one() {
    let (_dir, root) = context(&[]);
    let of = |image: &str, registries: &[&str]| {
        let model = json!({"services": {"main": {"image": OWN}, "db": {"image": image}}});
        checked(&root, &access(registries), &model)
    };
    for image in ["debian:12", OWN, "8.8.8.8/x", "public.example/x:1", "a/b@sha256:00"] {
        assert_eq!(of(image, &[]), Ok(()), "{image}");
    }
    for image in [
        INNER,
        "localhost/x",
        "[::1]/x",
        "169.254.169.254/x",
        "10.0.0.1:5000/x",
        "inner.example/x",
        "rollout/task:other",
        "sha256:0123456789abcdef",
    ] {
        let refusal = of(image, &[]).expect_err(image);
        assert_eq!(refusal.kind, FailureKind::Refused, "{image}");
        assert!(refusal.to_string().starts_with("service `db`: `image`: "), "{refusal}");
    }
    assert_eq!(of(INNER, &["127.0.0.1:18901"]), Ok(()));
    assert!(of(INNER, &["127.0.0.1:5000"]).is_err());
    let absent = of("absent.example/x", &[]).expect_err("no address");
    assert_eq!(absent.kind, FailureKind::Unreachable, "a name that is not found may be later");
}

#[test]
fn image_beside_a_build_is_checked() {
    let (_dir, root) = context(&[("Dockerfile", "FROM debian\n")]);
    let of = |image: &str| {
        let service = json!({"image": image, "build": {"context": "ROOT"}});
        checked(&root, &access(&[]), &json!({"services": {"main": service}}))
    };
    assert_eq!(of(OWN), Ok(()));
    assert!(of(INNER).is_err());
}

#[test]
fn dockerfile_with_resolved_arguments_fetches_nothing_of_the_inner_network() {
    for (dockerfile, args) in [
        ("FROM debian\nFROM \"debian\"\nADD files/* /x\nCOPY --from=0 /a /b\n", json!({})),
        ("# syntax=docker/dockerfile:1\nFROM debian\n", json!(null)),
        ("FROM debian\nRUN cat <<EOF > /x && echo 'é → ü'\né\nEOF\n", json!({})),
        (CHOSEN, json!({"BASE": "public.example/x", "N": 1})),
        ("ARG N\nFROM debian:$N\n", json!({"N": 12})),
    ] {
        assert_eq!(built(dockerfile, &args), None, "{dockerfile} {args}");
    }
    for (dockerfile, args, word) in [
        (format!("FROM {INNER}\n"), json!({}), "127.0.0.1:18901"),
        (format!("FROM debian\nCOPY --from={INNER} /a /b\n"), json!({}), "line 2"),
        (format!("FROM debian\nRUN --mount=from={INNER},target=/x :\n"), json!({}), "line 2"),
        ("FROM debian\nADD http://127.0.0.1/x /x\n".to_owned(), json!({}), "http://127.0.0.1/x"),
        ("FROM debian\nADD git@h:x /x\n".to_owned(), json!({}), "git@h:x"),
        (format!("# syntax={INNER}\nFROM debian\n"), json!({}), "frontend"),
        ("FROM debian\nCOPY --from x /a /b\n".to_owned(), json!({}), "different ways"),
        (CHOSEN.to_owned(), json!({"BASE": INNER}), "127.0.0.1:18901"),
        (CHOSEN.to_owned(), json!({"BASE": ""}), "different ways"),
        ("ARG H\nFROM $H/x\n".to_owned(), json!({"H": 127.1}), "127.1"),
        (
            "ARG A\nARG B\nARG C\nFROM $A$B$C/flmeta\n".to_owned(),
            json!({"A": "169.2", "B": "54.1", "C": "69.254"}),
            "169.254.169.254",
        ),
        ("FROM debian\n".to_owned(), json!({"BUILDKIT_SYNTAX": "a/b"}), "`BUILDKIT_SYNTAX`"),
        (
            " # escape=`\nFROM debian\n".to_owned(),
            json!({}),
            "expected `\\` as the escape character",
        ),
        ("FROM debian\nCOPY --chown=à--from=10.0.0.5/x /a /b\n".to_owned(), json!({}), "line 2"),
        ("FROM debian\nADD http:${X+y}//10.0.0.1/ /x\n".to_owned(), json!({}), "expected a file"),
        ("ARG B=\nARG A=<< B=10.0.0.1/\nFROM ${B}debian\n".to_owned(), json!({}), "line 3"),
        (CHOSEN.to_owned(), json!({"BASE": "a\u{a0}b"}), "no reference"),
    ] {
        let text = built(&dockerfile, &args).unwrap_or_else(|| panic!("{dockerfile} {args}"));
        assert!(text.contains(word), "{dockerfile} {args}: {text}");
    }
}

/// Each is what `docker compose` made of a file that looked harmless as it was written.
#[test]
fn builds_that_a_program_reads_in_another_way_than_a_server_are_refused() {
    let inner = format!("FROM {INNER}\n");
    let by_default = format!("ARG BASE\nARG A=${{BASE:+debian}}\nFROM ${{A:-{INNER}}}\n");
    let (_dir, root) = context(&[
        ("b/Dockerfile", &inner),
        ("D2", &inner),
        ("file", ""),
        ("c/d/x", ""),
        ("args/Dockerfile", CHOSEN),
        ("default/Dockerfile", &by_default),
    ]);
    symlink("c/d", root.join("a")).expect("linked");
    for (written, build) in [
        ("./missing/../b", json!({"context": "ROOT/b"})),
        ("./missing/../b, as it was written", json!({"context": "ROOT/missing/../b"})),
        ("./file/../b", json!({"context": "ROOT/b", "dockerfile": "Dockerfile"})),
        ("a/../b, through a link", json!({"context": "ROOT/a/../b"})),
        ("dockerfile: x/../D2", json!({"context": "ROOT", "dockerfile": "D2"})),
        ("${Z:-BASE}=…", json!({"context": "ROOT/args", "args": {"BASE": INNER}})),
        (
            "BUILDKIT_SYNTA${Z:-X}=…",
            json!({"context": "ROOT/args", "args": {"BUILDKIT_SYNTAX": INNER}}),
        ),
        ("BASE: ${E}", json!({"context": "ROOT/default", "args": {"BASE": ""}})),
    ] {
        let refusal = checked(&root, &access(&[]), &with_build(&build)).expect_err(written);
        assert_eq!(refusal.kind, FailureKind::Refused, "{written}: {refusal}");
        let text = refusal.to_string();
        assert!(text.starts_with("service `db`: `build`: "), "{written}: {text}");
    }
    let harmless = json!({"context": "ROOT/default", "args": {"BASE": "x"}});
    assert_eq!(checked(&root, &access(&[]), &with_build(&harmless)), Ok(()));
    let listed = access(&["127.0.0.1"]);
    assert_eq!(checked(&root, &listed, &with_build(&json!({"context": "ROOT/b"}))), Ok(()));
}

#[test]
fn context_and_dockerfile_are_a_directory_and_a_regular_file_of_the_task() {
    let (_dir, root) = context(&[
        ("Dockerfile", "FROM debian\n"),
        ("sub/Other", "FROM debian\n"),
        ("sub/Dockerfile/x", ""),
        ("sub/D.in", "FROM debian\n"),
        ("D2", "FROM scratch\nLABEL ok=1\n"),
        ("b/D2", "FROM 127.0.0.1:18901/lkfrom\n"),
    ]);
    symlink("../D2", root.join("b/Dockerfile")).expect("linked");
    symlink("../sub", root.join("b/s")).expect("linked");
    symlink("/etc", root.join("out")).expect("linked");
    symlink("/etc/passwd", root.join("sub/Out")).expect("linked");
    symlink("Other", root.join("sub/Link")).expect("linked");
    let of = |context: &str, dockerfile: &str| {
        let build = json!({"context": context, "dockerfile": dockerfile});
        checked(&root, &access(&[]), &with_build(&build))
    };
    for (context, dockerfile) in
        [("ROOT", "Dockerfile"), ("ROOT", ""), ("ROOT/sub", "Other"), ("ROOT/sub", "Link")]
    {
        assert_eq!(of(context, dockerfile), Ok(()), "{context} {dockerfile}");
    }
    for dockerfile in ["D.in", "D.in/", "D.in/."] {
        let preprocessed = of("ROOT/sub", dockerfile).expect_err(dockerfile).to_string();
        assert!(preprocessed.contains("some builders preprocess"), "{preprocessed}");
    }
    for (context, dockerfile) in [
        ("ROOT/missing", "Dockerfile"),
        ("ROOT/Dockerfile", "x"),
        ("ROOT/out", "passwd"),
        ("/etc", "passwd"),
        ("https://h.example/r.git", "Dockerfile"),
        ("ROOT/sub", "Dockerfile"),
        ("ROOT/sub", "Missing"),
        ("ROOT/sub", "Out"),
        ("ROOT/b", "Dockerfile"),
        ("ROOT/b", "s/Other"),
    ] {
        let refusal = of(context, dockerfile).expect_err(context);
        assert_eq!(refusal.kind, FailureKind::Refused, "{context} {dockerfile}");
        let text = refusal.to_string();
        assert!(text.contains("cannot be read"), "{context} {dockerfile}: {text}");
        assert!(!text.contains(root.to_str().expect("UTF-8")), "{text}");
    }
}

#[test]
fn keys_of_builds_that_reach_beyond_their_files_are_refused() {
    let (_dir, root) = context(&[("Dockerfile", "FROM debian\n")]);
    let of = |key: &str, value: &Value| {
        let mut build = json!({"context": root});
        build[key] = value.clone();
        rules::check(&with_build(&build), &root)
    };
    for (key, value) in [
        ("additional_contexts", json!({"x": "docker-image://127.0.0.1:18901/x"})),
        ("ssh", json!(["default"])),
        ("secrets", json!([{"source": "s"}])),
        ("cache_from", json!(["type=registry,ref=127.0.0.1:18901/x"])),
        ("cache_to", json!(["type=registry,ref=127.0.0.1:18901/x"])),
        ("network", json!("host")),
        ("entitlements", json!(["network.host"])),
        ("privileged", json!(true)),
        ("dockerfile_inline", json!("FROM 127.0.0.1:18901/x")),
    ] {
        let refused = of(key, &value).expect_err(key);
        assert!(refused.contains(&format!("`{key}` is not supported")), "{key}: {refused}");
    }
    assert_eq!(of("target", &json!("stage")), Ok(()));
}

#[tokio::test]
async fn resolved_file_is_given_back_unless_it_is_refused() {
    let (_dir, root) = context(&[]);
    for (image, is_allowed) in [("debian", true), (INNER, false)] {
        let model = json!({"services": {"main": {"image": image}}});
        let checked = check(model.clone(), access(&[]), OWN.to_owned(), root.clone()).await;
        assert_eq!(checked.ok(), is_allowed.then_some(model), "{image}");
    }
}
