//! Hostile uploads: nothing is written outside of them, and no program reads a repository in them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rollout_protocol::digest::Digest;
use rollout_tests::http::{HttpAnswer, HttpClient};
use rollout_tests::leak_check::directory_entries;
use rollout_tests::wait;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use tar::{Archive, Builder, EntryType, Header};

use crate::serve::datasets::uploaded;
use crate::serve::fetching_fixture::with_files;
use crate::serve::links::mentions;
use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

/// The content of every file of a hostile archive.
const WORD: &str = "ESCAPED-WORD";

/// A member of an archive: its kind, its name, and the target of a link.
type Member<'a> = (u8, &'a str, &'a str);

/// The harmless beginning of an archive.
const FIRST: Member<'static> = (b'0', "d/first", "");

fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, target) in members {
        let content = if *kind == b'0' { WORD } else { "" };
        let mut header = Header::new_gnu();
        // The library would refuse such names.
        let fields = header.as_old_mut();
        write_field(&mut builder, &mut fields.name, b'L', name);
        write_field(&mut builder, &mut fields.linkname, b'K', target);
        header.set_entry_type(EntryType::new(*kind));
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).expect("appended");
    }
    builder.into_inner().expect("an archive")
}

/// Writes a field of a header, or a member before it with a text for which it is too short.
fn write_field(builder: &mut Builder<Vec<u8>>, field: &mut [u8; 100], kind: u8, text: &str) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    if length == text.len() {
        return;
    }
    let mut header = Header::new_gnu();
    let name = b"././@LongLink";
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o644);
    header.set_size(text.len() as u64 + 1);
    header.set_cksum();
    builder.append(&header, format!("{text}\0").as_bytes()).expect("appended");
}

#[test]
fn archive_with_names_longer_than_their_fields_has_them_whole() {
    let long = format!("/{}", "long/".repeat(50));
    let bytes = archive(&[(b'2', long.as_str(), long.as_str())]);
    let mut read = Archive::new(bytes.as_slice());
    let entry = read.entries().expect("entries").next().expect("one").expect("an entry");
    assert_eq!(&*entry.path_bytes(), long.as_bytes());
    assert_eq!(entry.link_name_bytes().as_deref(), Some(long.as_bytes()));
}

/// Uploads an archive. Returns the path of its dataset, and the answer.
fn put(client: &HttpClient, bytes: &[u8]) -> (String, HttpAnswer) {
    let path = format!("/v1/datasets/{}", Digest::sha256(bytes).hex());
    let answer = client.send("PUT", &path, &[], bytes).expect("an answer");
    (path, answer)
}

#[test]
fn archive_with_a_special_member_or_one_that_leads_outside_is_refused_and_leaves_nothing() {
    let project = project().write("canary", "alive");
    let daemon = DaemonProcess::start(&project, &[]);
    let uploads = project.path().join("state/datasets");
    let canary = project.path().join("canary").display().to_string();
    for members in [
        vec![(b'2', "link", "../../../../canary")],
        vec![(b'2', "d/link", "x/../../../canary")],
        vec![(b'2', "link", canary.as_str())],
        vec![(b'1', "hard", canary.as_str())],
        vec![(b'1', "hard", "d/first")],
        vec![(b'3', "device", "")],
        vec![(b'4', "device", "")],
        vec![(b'6', "pipe", "")],
        vec![(b'0', "../../../../escaped", "")],
        vec![(b'0', "d/../../../../../escaped", "")],
        vec![(b'2', "inner", "d"), (b'0', "inner/escaped", "")],
    ] {
        let (path, answer) = put(&daemon.client, &archive(&[&[FIRST][..], &members[..]].concat()));
        assert_eq!(answer.status, 400, "{members:?}: {}", answer.text());
        let text = answer.text();
        assert!(text.contains("members that lead outside, or special files"), "{text}");
        let _absent = daemon.client.get(&path).expect(404);
        wait::until(DEADLINE, "nothing is left", || directory_entries(&uploads).is_empty());
    }
    // A file with an absolute name is one of the upload.
    let absolute = project.path().join("escaped").display().to_string();
    let (path, answer) = put(&daemon.client, &archive(&[FIRST, (b'0', absolute.as_str(), "")]));
    let _stored = answer.expect(204);
    let upload = uploads.join(path.rsplit('/').next().expect("a digest"));
    let inside = upload.join(absolute.trim_start_matches('/'));
    assert_eq!(fs::read_to_string(inside).expect("a file"), WORD);
    fs::remove_dir_all(upload).expect("removed");
    assert!(!mentions(project.path(), WORD), "a file is outside");
    assert_eq!(fs::read_to_string(canary).expect("a file"), "alive");
    daemon.stop();
}

/// A script that marks that it ran, which is also the hooks of a repository.
fn write_program(root: &Path) {
    let program = root.join("program");
    fs::write(&program, format!("#!/bin/sh\ntouch {}/ran\ncat\n", root.display()))
        .expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    fs::create_dir(root.join("hooks")).expect("made");
    for hook in ["post-index-change", "reference-transaction", "post-checkout"] {
        fs::copy(&program, root.join("hooks").join(hook)).expect("copied");
    }
}

#[test]
fn repository_in_an_upload_runs_no_program_and_leads_to_no_file() {
    let (project, git) = with_files(&[(".gitattributes", "* filter=own\n")]);
    let (root, repository) = (project.path(), project.path().join("repository"));
    let head = fs::read_to_string(git.join("refs/heads/main")).expect("a commit");
    write_program(root);
    // A program that reads it waits for a writer.
    let pipe = root.join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let program = root.join("program").display().to_string();
    let programs = format!(
        "[core]\n\tfsmonitor = {program}\n\thooksPath = {}/hooks\n\
         [filter \"own\"]\n\tclean = {program}\n\tsmudge = {program}\n",
        root.display()
    );
    let included = format!("[include]\n\tpath = {}\n", pipe.display());
    let ran = root.join("ran");
    let plain = fs::read_to_string(git.join("config")).expect("settings");
    let daemon = DaemonProcess::start(&project, &["--prepare-timeout", "60s"]);
    for (settings, runs_programs) in [(programs, true), (included, false)] {
        fs::write(git.join("config"), plain.clone() + &settings).expect("written");
        if runs_programs {
            // Git itself does.
            let mut status = Command::new("git");
            status.arg("status").current_dir(&repository).env("HOME", root);
            assert!(status.output().expect("git runs").status.success());
            fs::remove_file(&ran).expect("it ran");
        }
        let dataset = uploaded(&daemon.client, &project, &repository);
        let mut document = submission(&project, 1);
        document["document"]["datasets"] = json!([{ "path": dataset }]);
        let id = submitted(&daemon.client, &document);
        let run = daemon.wait_for(&id, &["failed", "completed"]);
        assert_eq!(run["state"], "completed", "{run:#}");
        // The repository was found.
        let files = root.join("state/jobs").join(&id);
        wait::until(DEADLINE, "the run is written", || files.join("result.json").exists());
        assert!(mentions(&files, head.trim()), "no commit in {}", files.display());
    }
    assert!(!ran.exists(), "a program of the upload ran");
    daemon.stop();
}
