//! Tests of the rules for images, builds and networks of tasks.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::config::{JobOptions, job_from_settings};

/// The places and findings of a task with these files.
fn found(files: &[(&str, &str)], access: &ImageAccess) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a directory");
    found_in(dir.path(), files, access)
}

/// The same, of a task in a directory, which may have other files.
fn found_in(dir: &Path, files: &[(&str, &str)], access: &ImageAccess) -> Vec<String> {
    for (name, text) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }
    let mut problems = Diagnostics::default();
    let options = JobOptions::for_command_line(&|_| true);
    let job = job_from_settings(&options, &mut Diagnostics::default()).expect("a job");
    fs::write(dir.join(TASK_FILE), files[0].1).expect("written");
    let file = dir.join(TASK_FILE);
    let file = crate::config::read_task(&file, Default::default(), &mut problems);
    let file = file.expect("a task");
    let compose = files.iter().any(|(name, _)| name.ends_with("docker-compose.yaml"));
    let parts = TaskParts {
        context: Some("environment".into()),
        compose: compose.then(|| "docker-compose.yaml".to_owned()),
        ..TaskParts::default()
    };
    let root = ConfinedDir::open(dir).expect("a directory");
    let fetch = FetchAccess::default();
    let rules = ImageRules::new(access, &fetch);
    rules.check(&job, (dir, &root), (&file, &parts), &mut problems);
    let (errors, _) = problems.into_parts();
    errors.iter().map(|error| error.found.clone()).collect()
}

fn dockerfile(text: &str) -> Vec<String> {
    let files = [("task.toml", "version = '1.0'\n"), ("environment/Dockerfile", text)];
    found(&files, &ImageAccess::default())
}

#[test]
fn dockerfile_that_fetches_from_the_network_of_the_engine_is_refused() {
    for good in [
        "FROM debian:12\nFROM \"debian\"\nADD files/* /x\nCOPY --from=0 /a /b\n",
        "# syntax=docker/dockerfile:1.7\nARG V=12\nFROM debian:$V AS base-a\nFROM base-a\n",
        "FROM debian\nADD [\"a b\", \"/x\"]\nCOPY <<EOF /x\nhttp://127.0.0.1/\nEOF\n",
        "# Größe → é\nARG V=12 P=\"a b\"\nFROM debian:${V}\nRUN echo 'é → ü' \\\n  # Größe\n  && true\n",
        "FROM debian\nRUN cat > /x << 'EOF'\nfrom é import x\nEOF\nCOPY \"a/\" ${HOME}/b,c *.py /x/\n",
    ] {
        assert_eq!(dockerfile(good), [""; 0], "{good}");
    }
    for bad in [
        "FROM 127.0.0.1:5000/x\n",
        "ARG R=127.0.0.1:5000\nFROM $R/x\n",
        "ARG R=127.0.0.1\nFROM ${R#a}/x\n",
        "FROM debian\nCOPY --from=localhost:5000/x /a /b\n",
        "FROM debian\nRUN --mount=type=bind,from=localhost:5000/x,target=/x true\n",
        "FROM debian\nADD http://127.0.0.1/x /x\n",
        "FROM debian\nADD https://example.com/x /x\n",
        "FROM debian\nADD git@127.0.0.1:x /x\n",
        "FROM debian\nARG U=http://127.0.0.1\nADD $U/x /x\n",
        "FROM debian\nADD [\"http://127.0.0.1/x\", \"/x\"]\n",
        "FROM debian\nONBUILD ADD http://127.0.0.1/x /x\n",
        "FROM debian\nADD h\"tt\"p://127.0.0.1/x /x\n",
        "FROM 127.0.0.1:5000/x-$TARGETARCH\n",
        "# syntax=127.0.0.1:5000/x\nFROM debian\n",
        "# syntax=someone/frontend\nFROM debian\n",
        "// syntax=someone/frontend\nFROM debian\n",
        "#!/bin/x\n{\"syntax\": \"someone/frontend\"}\n",
        "# syntax=docker/dockerfile:1.1\nFROM debian\n",
        "# syntax=docker/dockerfile:1@sha256:00\nFROM debian\n",
        " # escape=`\nFROM debian\nRUN true \\\nADD http://10.0.0.1/x /x\n",
        "#!/bin/x\n# escape=`\nFROM debian\nRUN true # `\nADD http://10.0.0.1/x /x\n",
        "#\u{a0}escape=`\nFROM debian\nRUN true `\nADD http://10.0.0.1/x /x\n",
        "FROM debian\nCOPY --chown=à--from=10.0.0.5:5000/x /a /b\n",
        "FROM debian\nRUN --mount=type=tmpfs,target=/à--mount=from=10.0.0.5:5000/x,target=/m true\n",
        "FROM debian\nADD http://169.254.169.254/x\\ /y\n",
        "FROM debian\nADD http://10.0.0.1/f<< /y\n",
        "FROM debian\nRUN : \"${x:-'}\"'}\" <<'B\\'\nRUN <<CMD\nB\\\nADD http://10.0.0.1/x /x\nCMD\n",
        "FROM debian\nADD http:$*//10.0.0.1:8080/ /x\n",
        "FROM debian\nADD http:${X+y}//169.254.169.254/ /x\n",
        "ARG B=\nARG A=<< B=127.0.0.1:18901/\nFROM ${B}debian\n",
        "FROM ${TARGETSTAGE:+127.0.0.1:18901/}debian\n",
    ] {
        assert!(!dockerfile(bad).is_empty(), "{bad}");
    }
}

#[test]
fn dockerfile_in_lower_case_is_checked() {
    let bad = "FROM 127.0.0.1:5000/x\n";
    let own = [("task.toml", "version = '1.0'\n"), ("environment/dockerfile", bad)];
    let of_service = [
        ("task.toml", "version = '1.0'\n"),
        ("environment/docker-compose.yaml", "services: {db: {build: db}}\n"),
        ("environment/db/dockerfile", bad),
    ];
    for files in [&own[..], &of_service[..]] {
        assert_eq!(found(files, &ImageAccess::default()).len(), 1, "{files:?}");
    }
}

#[test]
fn dockerfile_that_some_builder_preprocesses_is_refused() {
    for dockerfile in ["D.in", "D.in/", "D.in/."] {
        let build = format!("{{context: db, dockerfile: {dockerfile}}}");
        let compose = format!("services: {{db: {{build: {build}}}}}\n");
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", compose.as_str()),
            ("environment/db/D.in", "FROM debian\n"),
        ];
        let expected = ["a Dockerfile that some builders preprocess"];
        assert_eq!(found(&files, &ImageAccess::default()), expected, "{dockerfile}");
    }
}

#[test]
fn dockerfile_through_a_link_out_of_its_context_is_refused() {
    let both = "services: {main: {build: .}, db: {build: b}}\n";
    let of_main = "services: {main: {build: b}}\n";
    let named = "services: {db: {build: {context: b, dockerfile: s/Q}}}\n";
    let outside = "a Dockerfile through a link out of its context";
    for (compose, links, expected) in [
        (both, &[("../D2", "b/Dockerfile")][..], &[outside][..]),
        (of_main, &[("../D2", "b/Dockerfile")][..], &[outside][..]),
        (both, &[("x/y", "b/Dockerfile"), ("..", "b/x"), ("D2", "y")][..], &[outside][..]),
        (both, &[("../D2", "b/dockerfile")][..], &[outside][..]),
        (named, &[("../t", "b/s")][..], &[outside][..]),
        (named, &[("../../D2", "b/t/Q"), ("t", "b/s")][..], &[outside][..]),
        (both, &[("../b/Good", "b/Dockerfile")][..], &[outside][..]),
        (both, &[("Good", "b/Dockerfile")][..], &[][..]),
        (named, &[("../Good", "b/t/Q"), ("t", "b/s")][..], &[][..]),
        (both, &[("b", "c"), ("Good", "b/Dockerfile")][..], &[][..]),
    ] {
        let task = tempfile::tempdir().expect("a directory");
        let context = task.path().join("environment");
        for directory in ["b/t", "t"] {
            fs::create_dir_all(context.join(directory)).expect("made");
        }
        for (name, text) in [
            ("docker-compose.yaml", compose),
            ("Dockerfile", "FROM debian\n"),
            ("D2", "FROM scratch\nLABEL ok=1\n"),
            ("b/D2", "FROM 127.0.0.1:18901/lkfrom\n"),
            ("b/Good", "FROM debian\n"),
            ("t/Q", "FROM debian\n"),
        ] {
            fs::write(context.join(name), text).expect("written");
        }
        for (target, link) in links {
            symlink(target, context.join(link)).expect("linked");
        }
        let files =
            [("task.toml", "version = '1.0'\n"), ("environment/docker-compose.yaml", compose)];
        let access = ImageAccess::default();
        assert_eq!(found_in(task.path(), &files, &access), expected, "{compose} {links:?}");
    }
}

#[test]
fn images_of_task_and_services_are_checked_unless_listed() {
    let compose = "services:\n  main: {image: '${MAIN_IMAGE_NAME}'}\n  db: {image: \
                   '127.0.0.1:5000/db'}\n  web:\n    build: {context: web, args: {R: \
                   '127.0.0.1:5000'}}\n";
    let files = [
        ("task.toml", "[environment]\ndocker_image = '127.0.0.1:5000/main'\n"),
        ("environment/docker-compose.yaml", compose),
        ("environment/web/Dockerfile", "ARG R=docker.io\nFROM $R/web\n"),
    ];
    let extends = "services: {own: {extends: {file: other.yaml, service: x}}}\n";
    let extended = [
        ("task.toml", "version = '1.0'\n"),
        ("environment/docker-compose.yaml", extends),
        ("environment/other.yaml", "services: {x: {image: '127.0.0.1:5000/other'}}\n"),
    ];
    let rule = "127.0.0.1:5000".parse().expect("a rule");
    let hosts = rollout_environment::egress::AllowedHosts::public(vec![rule]);
    let listed = ImageAccess::Guarded(hosts);
    for (files, refused) in [(&files[..], 3), (&extended[..], 1)] {
        let found_of = |access: &ImageAccess| found(files, access);
        assert_eq!(found_of(&ImageAccess::default()).len(), refused, "{files:?}");
        assert_eq!(found_of(&ImageAccess::Everything), [""; 0]);
        assert_eq!(found_of(&listed), [""; 0]);
    }
}

#[test]
fn image_of_service_is_checked_wherever_it_is_written() {
    for compose in [
        "services: {labels: {image: 'localhost/x'}}",
        "services: {image: {image: 'localhost/x'}}",
        "x-part: &part {image: 'localhost/x'}\nservices: {main: {<<: *part}}",
        "x: &x {environment: {image: 'localhost/x'}}\nservices: {<<: *x}",
    ] {
        let files =
            [("task.toml", "version = '1.0'\n"), ("environment/docker-compose.yaml", compose)];
        assert!(!found(&files, &ImageAccess::default()).is_empty(), "{compose}");
    }
}

#[test]
fn build_that_another_service_changes_is_refused() {
    let inner = "FROM 127.0.0.1:5000/x\n";
    let chosen = "ARG BASE=debian\nFROM $BASE\n";
    for (compose, other, dockerfile) in [
        (
            "services: {a: {extends: {file: sub/o.yaml, service: b}}}",
            "services: {b: {build: .}}",
            inner,
        ),
        (
            "services: {a: {extends: {service: b}, build: {args: {BASE: localhost/x}}}, b: {build: sub}}",
            "",
            chosen,
        ),
        (
            "services: {a: {extends: {file: sub/o.yaml, service: b}}}",
            "services: {b: {build: {context: ., dockerfile: Other}}}",
            chosen,
        ),
        (
            "x: &x {context: sub}\nservices: {a: {build: {<<: *x, args: {BASE: localhost/x}}}}",
            "",
            chosen,
        ),
    ] {
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", compose),
            ("environment/sub/o.yaml", other),
            ("environment/sub/Dockerfile", dockerfile),
        ];
        assert!(!found(&files, &ImageAccess::default()).is_empty(), "{compose}");
    }
    let files = [
        ("task.toml", "version = '1.0'\n"),
        (
            "environment/docker-compose.yaml",
            "services: {a: {extends: {file: sub/o.yaml, service: b}, build: sub}}",
        ),
        ("environment/sub/o.yaml", "services: {b: {build: {context: .}}}"),
        ("environment/sub/Dockerfile", chosen),
    ];
    assert_eq!(found(&files, &ImageAccess::default()), [""; 0]);
}

#[test]
fn build_that_cannot_be_told_is_refused() {
    for build in [
        "{context: 'https://example.com/x.git'}",
        "'git@h:x'",
        "{context: '${WHERE}'}",
        "'${CONTEXT_DIR}sub'",
        "{context: '${CONTEXT_DIR}sub'}",
        "{context: sub, dockerfile: ''}",
        "{context: sub, dockerfile: null}",
        "{context: ''}",
        "''",
        "{context: ., args: [BUILDKIT_SYNTAX=someone/frontend]}",
        "{context: ., args: [BASE]}",
        "{context: ., args: {BASE: }}",
        "{context: ., args: {BASE: [debian]}}",
        "{context: ., args: ['${Z:-BASE}=debian']}",
        "{context: ., args: ['BUILDKIT_SYNTA${Z:-X}=someone/frontend']}",
        "{context: ., args: {BASE: '${E}'}}",
        "{context: ., args: {'${E}': debian}}",
        "./missing/../sub",
        "{context: sub, dockerfile: x/../Dockerfile}",
        "/environment/sub",
        "missing",
        "{context: sub, dockerfile: Missing}",
    ] {
        let compose = format!("services: {{main: {{build: {build}}}}}\n");
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", &*compose),
            ("environment/Dockerfile", "FROM debian\n"),
            ("environment/sub/Dockerfile", "FROM debian\n"),
        ];
        assert_eq!(found(&files, &ImageAccess::default()).len(), 1, "{build}");
    }
}

#[test]
fn argument_that_is_no_text_is_its_text() {
    let compose = "services: {main: {build: {context: ., args: {A: 127.1, B: 1, C: true}}}}\n";
    for (base, refused) in [("$A/x", 1), ("debian:$B", 0), ("a:$C", 0), ("debian:$D", 0)] {
        let dockerfile = format!("ARG A=docker.io\nARG B\nARG C\nFROM {base}\n");
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", compose),
            ("environment/Dockerfile", &*dockerfile),
        ];
        assert_eq!(found(&files, &ImageAccess::default()).len(), refused, "{base}");
    }
}

/// Text of an argument for a server that is another one for `docker compose`.
#[test]
fn number_as_argument_in_another_form_than_that_of_compose_is_refused() {
    let of = |args: &str, dockerfile: &str| {
        let compose = format!(
            "services:\n  main: {{build: .}}\n  db: {{build: {{context: ., dockerfile: D2, args: \
             {args}}}}}\n"
        );
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", &*compose),
            ("environment/Dockerfile", "FROM debian\n"),
            ("environment/D2", dockerfile),
        ];
        found(&files, &ImageAccess::default())
    };
    let inner = "ARG A\nARG B\nARG C\nFROM $A$B$C/flmeta\n";
    let untold = "a build of a place, or with an argument, that cannot be told";
    for args in [
        "{A: 1692e-1, B: 541e-1, C: 69254e-3}",
        "{A: 101e-1, B: 1e-1, C: 1e-1}",
        "{A: 1278e-1}",
        "{A: !!float '1692e-1', B: '541e-1', C: 1}",
        "{A: !!int '0x7f', B: '.0.0.1'}",
        "{A: 0x7f000001}",
        "{A: 0o177, B: '.0.0.1'}",
        "{A: 0177, B: '.0.0.1'}",
        "{A: 0b1111111, B: '.0.0.1'}",
        "{A: +127, B: '.0.0.1'}",
        "{A: 1_6925e-2}",
        "{A: 1_27, B: '.0.0.1'}",
        "{A: -0X7F, B: x}",
        "{A: 0.00001}",
        "{A: 01.5}",
        "{A: .5}",
        "{A: .inf}",
        "{A: 1234567890123456.5}",
    ] {
        assert_eq!(of(args, inner), [untold], "{args}");
    }
    // Each has the text that the program makes of it.
    for (args, is_refused) in [
        ("{A: 169.2, B: 54.1, C: 69.254}", true),
        ("{A: 127.0, B: '.0.0.1'}", true),
        ("{A: 3.10, B: 1, C: True}", false),
        ("{A: '1692e-1', B: 'v1_2', C: 0b12ab34}", false),
        ("[A=1692e-1, B=541e-1, C=69254e-3]", false),
    ] {
        let base = if is_refused { inner } else { "ARG A\nARG B\nARG C\nFROM debian:$A$B$C\n" };
        let found = of(args, base);
        assert_eq!(!found.is_empty(), is_refused, "{args}: {found:?}");
        assert!(!found.iter().any(|one| one == untold), "{args}: {found:?}");
    }
}

#[test]
fn findings_and_files_of_a_task_have_a_limit() {
    let lines = (0..1000).map(|n| format!("FROM 127.0.0.1:{n}/a\n")).collect::<String>();
    assert_eq!(dockerfile(&lines).len(), MAX_FINDINGS);
    let long = format!("FROM debian\nADD http://h/{} /x\n", "ä".repeat(10_000));
    assert_eq!(dockerfile(&long)[0].chars().count(), MAX_TEXT + 1);
    let services = (0..1000)
        .map(|n| format!("  s{n}: {{build: {{context: ., args: {{A: {n}}}}}}}\n"))
        .collect::<String>();
    let compose = format!("services:\n{services}");
    let files = [
        ("task.toml", "version = '1.0'\n"),
        ("environment/docker-compose.yaml", &*compose),
        ("environment/Dockerfile", "FROM debian\n"),
    ];
    let found = found(&files, &ImageAccess::default());
    assert_eq!(found, ["more than 64 builds and compose files"]);
}

#[test]
fn compose_file_that_cannot_be_told_is_refused() {
    for (compose, expected) in [
        (
            "services: {a: {extends: {file: sub/../o.yaml, service: a}}}\n",
            "the file `sub/../o.yaml`, which cannot be told",
        ),
        (
            "services: {a: {extends: {file: /environment/o.yaml, service: a}}}\n",
            "the file `/environment/o.yaml`, which cannot be told",
        ),
        (
            "services: {a: {extends: {file: '${D}.yaml', service: a}}}\n",
            "the file `${D}.yaml`, which cannot be told",
        ),
        (
            "services: {a: {extends: {file: '${CONTEXT_DIR}o.yaml', service: a}}}\n",
            "the file `${CONTEXT_DIR}o.yaml`, which cannot be told",
        ),
        (
            "services: {a: {image: debian, image: debian}}\n",
            "text that readers take in different ways: a duplicate key \"image\"",
        ),
    ] {
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", compose),
            ("environment/o.yaml", "services: {a: {image: debian}}\n"),
        ];
        assert_eq!(found(&files, &ImageAccess::default()), [expected], "{compose}");
    }
}

#[test]
fn limits_beyond_the_container_and_names_that_are_paths_are_refused() {
    let compose = |service: &str| {
        let text = format!("x: &x {service}\nservices: {{db: {service}, web: {{<<: *x}}}}\n");
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", text.as_str()),
            ("environment/Dockerfile", "FROM debian\n"),
        ];
        found(&files, &ImageAccess::default())
    };
    for (service, word) in [
        ("{build: ., ulimits: {nofile: 1, rtprio: 99}}", "`rtprio`"),
        ("{build: ., ulimits: {nice: {soft: 40, hard: 40}}}", "`nice`"),
        ("{build: ., sysctls: {kernel.core_pattern: '|/x'}}", "`kernel.core_pattern`"),
        ("{build: ., sysctls: [net.core.somaxconn=1, vm.swappiness=1]}", "`vm.swappiness`"),
        ("{image: 'a/../127.0.0.1:18901/cd'}", "no reference"),
        ("{image: 'a/../../events?x=1#b'}", "no reference"),
    ] {
        let findings = compose(service);
        assert!(findings.iter().any(|one| one.contains(word)), "{service}: {findings:?}");
    }
    for service in [
        "{build: ., ulimits: {nofile: {soft: 1, hard: 2}, memlock: -1, nproc: 5, core: 0}}",
        "{build: ., sysctls: {net.core.somaxconn: 1024}}",
        "{build: ., sysctls: [net.ipv4.tcp_syncookies=0], networks: {ulimits: {aliases: [a]}}}",
        "{image: 'debian:12@sha256:00'}",
    ] {
        assert_eq!(compose(service), [""; 0], "{service}");
    }
}

#[test]
fn addresses_of_networks_are_refused() {
    let compose = |text: &str| {
        let files = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", text),
            ("environment/Dockerfile", "FROM debian\n"),
        ];
        found(&files, &ImageAccess::default())
    };
    let ranges = "{config: [{subnet: 10.20.30.0/24}]}";
    for refused in [
        format!("networks: {{n: {{ipam: {ranges}}}}}\n"),
        format!("x-n: &n {{ipam: {ranges}}}\nnetworks: {{n: {{<<: *n}}}}\n"),
        "networks: {n: {ipam: {driver: other}}}\n".to_owned(),
        format!("x-n: &n {{n: {{ipam: {ranges}}}}}\nnetworks: {{<<: *n}}\n"),
        format!("x-n: {{labels: &n {{ipam: {ranges}}}}}\nnetworks: {{n: *n}}\n"),
    ] {
        let findings = compose(&refused);
        assert!(
            findings.iter().any(|one| one == "addresses of a network"),
            "{refused}: {findings:?}"
        );
    }
    for name in
        ["services", "networks", "a.services", "a.networks", "labels", "environment", "args"]
    {
        let findings = compose(&format!("networks: {{{name}: {{ipam: {ranges}}}}}\n"));
        assert_eq!(findings, ["addresses of a network"], "{name}");
    }
    for allowed in [
        "networks: {n: {ipam: {}}, m: {ipam: null}}\n",
        "services: {ipam: {build: .}}\nnetworks: {ipam: {internal: true}}\n",
        "services: {s: {build: ., environment: {ipam: x}, networks: {ipam: {aliases: [a]}}}}\n",
    ] {
        assert_eq!(compose(allowed), [""; 0], "{allowed}");
    }
}
