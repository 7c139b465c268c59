//! Links in tasks of users: nothing of the server is read through them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use rollout_tests::project::{self, Project};
use rollout_tests::wait;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::serve::datasets::uploaded;
use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

/// A word of a file that no user may read.
const SECRET: &str = "SECRET-WORD";

/// The entries of a task that are read before it runs.
const ENTRIES: [&str; 9] = [
    "task.toml",
    "instruction.md",
    "trajectory.json",
    ".harborignore",
    "environment/Dockerfile",
    "environment/.dockerignore",
    "environment/docker-compose.yaml",
    "tests/test.sh",
    "solution/solve.sh",
];

/// Everything that a user sees of a run.
fn seen(daemon: &DaemonProcess, id: &str) -> String {
    let parts = ["", "/items"].map(|part| {
        let answer = daemon.client.send("GET", &format!("/v1/runs/{id}{part}"), &[], b"");
        answer.map(|answer| answer.text()).unwrap_or_default()
    });
    parts.concat()
}

/// Submits the tasks of a project and returns the failure of the run.
fn failure(daemon: &DaemonProcess, project: &Project) -> (String, Value) {
    let id = submitted(&daemon.client, &submission(project, 1));
    let run = daemon.wait_for(&id, &["failed", "completed"]);
    (id, run)
}

#[test]
fn link_out_of_a_task_is_refused_without_a_word_of_its_target() {
    let project = project().tasks(["slow/second"], &[]);
    let secret = format!("{SECRET} = \"{SECRET}\"\n{SECRET}\n");
    project.write_file("secret", &secret);
    project.write_file("outside/test.sh", &secret);
    let daemon = DaemonProcess::start(&project, &[]);
    let task = project.path().join("tasks/second");
    let original = project.path().join("original");
    project::copy(&task, &original, &[]);
    let restore = || {
        fs::remove_dir_all(&task).expect("removed");
        project::copy(&original, &task, &[]);
    };
    let outside = project.path().join("outside");
    let targets = ["../../secret", "../../../secret", "/proc/self/environ", "/dev/zero"];
    let links = ENTRIES.iter().map(|entry| {
        let depth = entry.matches('/').count();
        (*entry, vec![targets[depth], targets[2], targets[3]])
    });
    let directories =
        ["environment", "tests", "solution"].map(|entry| (entry, vec!["../../outside"]));
    for (entry, targets) in links.chain(directories) {
        for target in targets {
            let link = task.join(entry);
            let _absent = fs::remove_file(&link).or_else(|_| fs::remove_dir_all(&link));
            symlink(target, &link).expect("a link");
            let (id, run) = failure(&daemon, &project);
            let text = seen(&daemon, &id);
            assert_eq!(run["state"], "failed", "{entry} -> {target}: {text}");
            assert!(text.contains(&format!("second/{entry}")), "{entry} -> {target}: {text}");
            assert!(text.contains("symlink out of the task"), "{entry} -> {target}: {text}");
            assert!(!text.contains(SECRET) && !text.contains("HOME="), "{entry}: {text}");
            restore();
        }
    }
    // A link deeper in a part, and one to a directory of the host that a task lies in.
    symlink(&outside, task.join("tests/deep")).expect("a link");
    let (id, run) = failure(&daemon, &project);
    assert_eq!(run["state"], "failed", "{}", seen(&daemon, &id));
    restore();
    symlink(&outside, project.path().join("tasks/elsewhere")).expect("a link");
    fs::write(outside.join("task.toml"), "").expect("written");
    let (id, run) = failure(&daemon, &project);
    assert_eq!(run["state"], "failed", "{}", seen(&daemon, &id));
    assert!(seen(&daemon, &id).contains("does not allow"), "{}", seen(&daemon, &id));
    daemon.stop();
}

#[test]
fn links_inside_a_task_are_followed() {
    let project = project().tasks(["slow/second"], &[]);
    let task = project.path().join("tasks/second");
    for (entry, moved, target) in [
        ("instruction.md", "tests/words.md", "tests/words.md"),
        ("tests/test.sh", "tests/real.sh", "real.sh"),
        ("solution", "own-solution", "own-solution"),
    ] {
        fs::rename(task.join(entry), task.join(moved)).expect("moved");
        symlink(target, task.join(entry)).expect("a link");
    }
    let daemon = DaemonProcess::start(&project, &[]);
    let (id, run) = failure(&daemon, &project);
    assert_eq!(run["state"], "completed", "{}", seen(&daemon, &id));
    assert_eq!(run["progress"]["mean_reward"], 0.5, "{run:#}");
    daemon.stop();
}

#[test]
fn pipes_in_a_task_hang_nothing() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let task = project.path().join("tasks/second");
    for entry in ["environment/Dockerfile", "instruction.md", "task.toml"] {
        let _absent = fs::remove_file(task.join(entry));
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, task.join(entry), FileType::Fifo, mode, 0).expect("a pipe");
        let (id, run) = failure(&daemon, &project);
        assert_ne!(run["progress"]["passed"], json!(1), "{entry}: {}", seen(&daemon, &id));
    }
    daemon.stop();
}

#[test]
fn upload_takes_no_commit_of_another_repository() {
    let project = project().tasks(["slow/second"], &[]).write(".gitignore", "state\n").commit();
    let head = fs::read_to_string(project.path().join(".git/refs/heads/main")).expect("a commit");
    let head = head.trim();
    let daemon = DaemonProcess::start(&project, &[]);
    let tasks = project.path().join("tasks");
    let mut document = submission(&project, 1);
    let run = |document: &Value| {
        let id = submitted(&daemon.client, document);
        (daemon.wait_for(&id, &["failed", "completed"]), seen(&daemon, &id), id)
    };
    // The repository around the server's state is not that of the upload.
    document["document"]["datasets"] =
        json!([{ "path": uploaded(&daemon.client, &project, &tasks) }]);
    let (plain, text, id) = run(&document);
    assert_eq!(plain["state"], "completed", "{text}");
    let files = project.path().join("state/jobs").join(id);
    wait::until(DEADLINE, "the run is written", || files.join("result.json").exists());
    assert!(!mentions(&files, head), "the commit of another repository");

    for (path, content) in [
        (".git", format!("gitdir: {}/.git\n", project.path().display())),
        (".git/commondir", format!("{}/.git\n", project.path().display())),
        (".git/objects/info/alternates", format!("{}/.git/objects\n", project.path().display())),
    ] {
        let file = tasks.join("second").join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        fs::write(&file, content).expect("written");
        if path != ".git" {
            fs::write(tasks.join("second/.git/HEAD"), "ref: refs/heads/main\n").expect("written");
        }
        document["document"]["datasets"] =
            json!([{ "path": uploaded(&daemon.client, &project, &tasks) }]);
        let (refused, text, _) = run(&document);
        assert_eq!(refused["state"], "failed", "{path}: {text}");
        assert!(text.contains("repository in another directory"), "{path}: {text}");
        assert!(!text.contains(head), "{path}: {text}");
        let git = tasks.join("second/.git");
        fs::remove_file(&git).or_else(|_| fs::remove_dir_all(&git)).expect("removed");
    }
    daemon.stop();
}

/// Whether a file below a directory has a word. A server may remove directories meanwhile.
pub(super) fn mentions(directory: &Path, word: &str) -> bool {
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return false,
        Err(error) => panic!("cannot list {}: {error}", directory.display()),
    };
    entries.any(|entry| {
        let path = entry.expect("an entry").path();
        // A link is not its target.
        if path.is_symlink() {
            return false;
        }
        if path.is_dir() {
            return mentions(&path, word);
        }
        let bytes = fs::read(&path).unwrap_or_default();
        bytes.windows(word.len()).any(|found| found == word.as_bytes())
    })
}
