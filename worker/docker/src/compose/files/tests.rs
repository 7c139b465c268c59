//! Tests of the files that `docker compose` reads.

use super::*;

fn checked(files: &[(&str, &str)]) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).expect("written");
    }
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).expect("linked");
    let compose = ComposeFile::of_task(dir.path(), "compose.yaml");
    check(&compose).map_err(|failure| failure.message)
}

#[test]
fn compose_file_invalid_is_refused_or_unsupported() {
    for (text, kind) in [
        ("services: {main: {image: [", FailureKind::Refused),
        ("- a\n- list\n", FailureKind::Refused),
        ("services: {main: {env_file: /etc/passwd}}", FailureKind::Unsupported),
        ("include: [other.yaml]", FailureKind::Unsupported),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("compose.yaml"), text).expect("written");
        let compose = ComposeFile::of_task(dir.path(), "compose.yaml");
        assert_eq!(check(&compose).expect_err(text).kind, kind, "{text}");
    }
}

#[test]
fn compose_file_inside_context_is_accepted() {
    let main = "x-common: &common {env_file: a.env}\nservices:\n  main:\n    <<: *common\n    \
                environment: {env_file: /etc/passwd, include: x}\n  db:\n    extends: {file: \
                other.yaml, service: db}\n    env_file: [{path: missing.env, required: false}]\n";
    let other = "services: {db: {image: x, env_file: ['${CONTEXT_DIR}/a.env']}}\n";
    let files = [("compose.yaml", main), ("other.yaml", other), ("a.env", "A=b\n")];
    assert_eq!(checked(&files), Ok(()));
}

/// The files below a directory, and the names in it.
fn written(files: &[(&str, &str)]) -> (tempfile::TempDir, tempfile::TempDir, ComposeFiles) {
    let [dir, copies] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("below")).expect("created");
        std::fs::write(path, text).expect("written");
    }
    let compose = ComposeFile::of_task(dir.path(), "compose.yaml");
    let read = ComposeFiles::read(&compose, &copies.path().join("project")).expect("valid");
    (dir, copies, read)
}

fn json_of(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("written");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn copies_name_each_other_and_the_variables_of_the_context() {
    let main = "services: {main: {extends: {file: 'sub/git@h:r.git', service: x}, env_file: [a.env, \
                {path: '~/b.env', required: false}], build: {context: sub}}}\n";
    let other = "services: {x: {env_file: c.env, volumes: ['./d:/d']}}\n";
    let files = [
        ("compose.yaml", main),
        ("sub/git@h:r.git", other),
        ("sub/c.env", ""),
        ("a.env", ""),
        (".env", "A=b\n"),
    ];
    let (dir, copies, read) = written(&files);
    let root = dir.path().canonicalize().expect("a path");
    let project = copies.path().join("project");
    let names = read.write().expect("written");
    assert_eq!(names.tops, [project.join("0.yaml")]);
    let variables = names.variables.expect("there are some");
    assert!(!variables.starts_with(&project));
    assert_eq!(std::fs::read_to_string(variables).expect("text"), "A=b\n");
    let main = &json_of(&names.tops[0])["services"]["main"];
    let extended = project.join("sub/1.yaml");
    assert_eq!(main["extends"]["file"], extended.display().to_string());
    assert_eq!(main["env_file"][0], root.join("a.env").display().to_string());
    let missing = root.join("~/b.env").display().to_string();
    assert_eq!(main["env_file"][1]["path"], missing, "no home directory is named");
    let service = &json_of(&extended)["services"]["x"];
    assert_eq!(service["env_file"], root.join("sub/c.env").display().to_string());
    let mut model = serde_json::json!({
        "source": project.join("sub/d"), "context": project, "text": "/project",
        "beside": copies.path().join("d"), "services": {
            "a": {"extends": {"file": extended, "service": "x"}, "build": {"context": "./sub"}},
            "b": {"env_file": ["a.env"], "build": {"context": "https://h/r.git"}},
        },
    });
    read.restore(&mut model, &root);
    let expected = serde_json::json!({
        "source": root.join("sub/d"), "context": root, "text": "/project",
        "beside": root.with_file_name("d"), "services": {
            "a": {"build": {"context": format!("{}/./sub", root.display())}},
            "b": {"build": {"context": "https://h/r.git"}},
        },
    });
    assert_eq!(model, expected);
    let said = format!("{}: {}.env: no", extended.display(), project.display());
    assert_eq!(read.restore_names(&said), "sub/git@h:r.git: .env: no");
}

#[test]
fn copies_are_in_the_directory_of_the_name_and_have_names_of_their_own() {
    let main = "services: {main: {extends: {file: 1.yaml, service: x}}}\n";
    let files = [
        ("compose.yaml", main),
        ("0.yaml/x", ""),
        ("sub/real.yaml", "services: {x: {env_file: e.env}}\n"),
        ("e.env", ""),
    ];
    let (dir, copies) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("one"));
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("below")).expect("created");
        std::fs::write(path, text).expect("written");
    }
    std::os::unix::fs::symlink("sub/real.yaml", dir.path().join("1.yaml")).expect("linked");
    std::fs::create_dir(dir.path().join(".env")).expect("created");
    let compose = ComposeFile::of_task(dir.path(), "compose.yaml");
    let project = copies.path().join("project");
    let read = ComposeFiles::read(&compose, &project).expect("valid");
    let names = read.write().expect("written");
    assert!(names.variables.is_none(), "`.env` is a directory");
    assert_eq!(names.tops, [project.join("2.yaml")]);
    let extended = project.join("3.yaml");
    let main = &json_of(&names.tops[0])["services"]["main"];
    assert_eq!(main["extends"]["file"], extended.display().to_string());
    let root = dir.path().canonicalize().expect("a path");
    let service = &json_of(&extended)["services"]["x"];
    assert_eq!(service["env_file"], root.join("e.env").display().to_string());
}

#[test]
fn names_of_one_file_through_links_have_a_limit() {
    let extended =
        (0..FILES).map(|n| format!("  s{n}: {{extends: {{file: l{n}/y.yaml, service: s}}}}\n"));
    let text = format!("services:\n{}", extended.collect::<String>());
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("x.yaml"), text).expect("written");
    std::fs::write(dir.path().join("y.yaml"), "services: {s: {image: x}}\n").expect("written");
    for n in 0..FILES {
        std::os::unix::fs::symlink(".", dir.path().join(format!("l{n}"))).expect("linked");
    }
    let compose = ComposeFile::of_task(dir.path(), "x.yaml");
    let refused = check(&compose).expect_err("too many").message;
    assert!(refused.contains("more than 64 files"), "{refused}");
}

#[test]
fn copies_have_only_what_was_checked() {
    for end in ['\u{85}', '\u{2028}', '\u{2029}'] {
        let text = format!(
            "services:\n  main:\n    image: x # a{end}    env_file: /etc/passwd\n    command: \
             |\n      a{end}    image: y\n# b{end}include: [/x.yaml]\n"
        );
        let (_dir, _copies, read) = written(&[("compose.yaml", &text)]);
        let written = std::fs::read_to_string(&read.write().expect("written").tops[0]);
        let written = written.expect("text");
        assert!(written.is_ascii(), "{written}");
        let value: Value = serde_json::from_str(&written).expect("JSON");
        let command = format!("a{end}    image: y\n");
        let main = serde_json::json!({"image": "x", "command": command});
        assert_eq!(value, serde_json::json!({"services": {"main": main}}));
    }
}

#[test]
fn file_that_aliases_make_too_long_is_refused() {
    let mut text = format!("a0: &a0 [{}]\n", vec!["xxxxxxxxxx"; 100].join(", "));
    for n in 1..4 {
        let before = n - 1;
        let items = vec![format!("*a{before}"); 40].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{items}]\n"));
    }
    let refused = checked(&[("compose.yaml", &text)]).expect_err("too long");
    assert!(refused.contains("aliases") || refused.contains("budget"), "{refused}");
}

#[test]
fn extends_names_its_file_and_service_as_texts() {
    let extends = |names: &str| format!("services: {{a: {{extends: {names}}}, b: {{image: x}}}}\n");
    for (names, words) in [
        ("{file: 5, service: b}", "`services.a.extends`: `file` is not a text"),
        ("{file: true, service: b}", "`file` is not a text"),
        ("{file: [x.yaml], service: b}", "`file` is not a text"),
        ("{service: 5}", "`services.a.extends`: `service` is not a text"),
        ("{service: null}", "`service` is not a text"),
        ("{file: compose.yaml}", "`service` is missing"),
    ] {
        let refused = checked(&[("compose.yaml", &extends(names))]).expect_err(names);
        assert!(refused.contains(words), "{names}: {refused}");
    }
    for names in ["b", "{service: b}", "{file: null, service: b}", "{file: '5', service: b}"] {
        let text = extends(names);
        let files = [("compose.yaml", text.as_str()), ("5", "services: {b: {image: x}}\n")];
        assert_eq!(checked(&files), Ok(()), "{names}");
    }
}

#[test]
fn compose_file_outside_context_is_refused() {
    for (text, word) in [
        ("services: {main: {env_file: /etc/passwd}}", "services.main.env_file"),
        ("services: {main: {env_file: link}}", "outside"),
        ("services: {main: {env_file: link/.}}", "outside"),
        ("services: {main: {env_file: [link/]}}", "outside"),
        ("services: {labels: {env_file: /etc/passwd}}", "services.labels.env_file"),
        ("services: {extends: {env_file: link}}", "outside"),
        ("services: {services: {env_file: /etc/passwd}}", "services.services.env_file"),
        ("services: {a.services: {env_file: link}}", "outside"),
        ("services: {services: {extends: {file: link, service: x}}}", "outside"),
        ("x: &x {args: {env_file: link}}\nservices: {<<: *x}", "outside"),
        ("services: {main: {env_file: [{path: ../../../etc/passwd}]}}", "`..`"),
        ("services: {}\n---\nservices: {main: {env_file: /etc/passwd}}", "compose.yaml"),
        ("services: {main: {env_file: '${HOME}/.netrc'}}", "variables"),
        ("services: {main: {extends: {file: /etc/compose.yaml, service: x}}}", "outside"),
        ("services: {main: {extends: {file: link, service: x}}}", "outside"),
        ("x: &x {env_file: /etc/passwd}\nservices: {main: {<<: *x}}", "main.env_file"),
        ("include: [/etc/compose.yaml]", "include"),
        ("services: [", "compose.yaml"),
        ("- a", "not a map"),
    ] {
        let refused = checked(&[("compose.yaml", text)]).expect_err(text);
        assert!(refused.contains(word), "{text}: {refused}");
    }
}

#[test]
fn files_of_job_follow_that_of_task_and_are_checked_as_it_is() {
    let [dir, copies] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    std::fs::write(dir.path().join("compose.yaml"), "services: {main: {image: x}}\n")
        .expect("written");
    let overlays = ["services: {a: {env_file: a.env}}\n", "services: {b: {image: y}}\n"];
    let overlays: Vec<_> = overlays.map(str::to_owned).into();
    let of_both = ComposeFile { overlays, ..ComposeFile::of_task(dir.path(), "compose.yaml") };
    for (compose, names) in [
        (of_both.clone(), vec!["main", "a", "b"]),
        (ComposeFile { file: None, ..of_both.clone() }, vec!["a", "b"]),
    ] {
        let read = ComposeFiles::read(&compose, &copies.path().join("project")).expect("valid");
        let written = read.write().expect("written");
        let services = written.tops.iter().map(|file| json_of(file)["services"].clone());
        let found: Vec<String> = services
            .flat_map(|one| one.as_object().cloned())
            .flatten()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(found, names);
        let env_file = &json_of(&written.tops[names.len() - 2])["services"]["a"]["env_file"];
        let root = dir.path().canonicalize().expect("a path");
        assert_eq!(*env_file, root.join("a.env").display().to_string());
    }
    for (text, kind) in [
        ("services: [", FailureKind::Refused),
        ("services: {a: {env_file: /etc/passwd}}", FailureKind::Unsupported),
    ] {
        let compose = ComposeFile { overlays: vec![text.to_owned()], ..of_both.clone() };
        let failure = check(&compose).expect_err(text);
        assert_eq!(failure.kind, kind, "{}", failure.message);
        assert!(failure.message.starts_with("compose file 1 of the job: "), "{}", failure.message);
    }
}
