//! Tests of scripts, with the shell of this host.

use std::process::{Command, Output};

use super::*;

fn run(script: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).args(arguments).output().expect("a shell")
}

#[test]
fn quoted_text_is_one_word_with_its_content() {
    for text in ["", "a b", "it's", "$HOME `id` \"x\" \\", "line\nline", "-n", "'"] {
        let printed = run(&format!("printf %s {}", quote(text)), &[]);
        assert_eq!(String::from_utf8_lossy(&printed.stdout), text);
    }
}

#[test]
fn scripts_are_valid_and_short_enough_for_a_url() {
    let uploads = [
        Upload::Dir { path: "/logs".into() },
        Upload::FreshDir { path: "/logs/it's".into() },
        Upload::File { path: "/a/b".into(), bytes: "x".into(), executable: false },
        Upload::Merge { path: "/m".into(), tar: "/x".into() },
    ];
    let launch = Launch { id: "x", script_bytes: 1, out: 0, err: 0 };
    let mark = "rollout:0123456789abcdef0123456789abcdef:";
    for argv in [
        launch.argv("/bin/sh", mark),
        prepare("/bin/sh", Some("/app"), &["/logs".to_owned()], mark),
        user("/bin/sh", "agent", mark),
        connect("/bin/sh", true, mark),
        place("/bin/sh", &uploads, 1024, mark),
        read("/bin/sh", "/logs/agent", 0, mark),
        sweep("/bin/sh", false),
        sweep("/bin/sh", true),
        kill_commands("/bin/sh"),
    ] {
        assert_eq!(argv[..2], ["/bin/sh", "-c"]);
        let checked = Command::new("/bin/sh").args(["-n", "-c", &argv[2]]).output();
        let checked = checked.expect("a shell");
        assert!(
            checked.status.success(),
            "{}: {}",
            argv[2],
            String::from_utf8_lossy(&checked.stderr)
        );
        let length: usize = argv.iter().map(String::len).sum();
        assert!(length < 5000, "{length}");
    }
}

#[test]
fn archive_merged_with_root_makes_no_directory() {
    let merge = |path: &str| Upload::Merge { path: path.into(), tar: "/x".into() };
    assert_eq!(directories(&[merge("/"), merge("/m/")]), "parent '/m'\n");
}

#[test]
fn uploads_become_calls_in_order() {
    let uploads = [
        Upload::Dir { path: "/logs/".into() },
        Upload::Archive { path: "/tests".into(), tar: "/x".into() },
        Upload::File { path: "/top".into(), bytes: "x".into(), executable: false },
        Upload::File { path: "/a/b/c".into(), bytes: "x".into(), executable: false },
    ];
    assert_eq!(directories(&uploads), "dir '/logs'\nfresh '/tests' 755\nparent '/a/b'\n");
}

#[test]
fn path_to_read_is_split_into_parent_and_name() {
    let split = |path| read("/bin/sh", path, 7, "m")[4..].to_vec();
    assert_eq!(split("/logs/agent"), ["/logs", "agent", "7", "m"]);
    assert_eq!(split("/logs/"), ["/", "logs", "7", "m"]);
    assert_eq!(split("/"), [".", ".", "7", "m"]);
}

#[test]
fn runner_quotes_everything_that_a_command_has() {
    let command = ExecCommand {
        argv: ["printf", "%s|", "a'b", "$x"].map(str::to_owned).to_vec(),
        env: [("B".to_owned(), "it's $y".to_owned())].into(),
        workdir: Some("/tmp/it's".to_owned()),
        user: Some("no'body".to_owned()),
    };
    let env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "old".to_owned())].into();
    let script = runner("x", &command, &env, "/");
    let defined = script.split_once("rm -f").expect("the runner").0;
    let shown = format!(
        "path=/usr/bin:/bin\nbecome() {{ exec \"$@\"; }}\n{defined}\n\
         echo \"$user,$workdir,$search\"; (vars \"$@\"); (vars sh -c 'echo \"$A,$B\"')"
    );
    let printed = run(&shown, &[]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert_eq!(
        printed,
        "no'body,/tmp/it's,/usr/bin:/bin\n%s|".replace("%s|", "a'b|$x|1,it's $y\n")
    );
}
