//! Damaged run directories: refusal, `rollout repair`, and result files rewritten on resume.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::exit::ExitCode;
use rollout_tests::journal_replay::assert_follows_from_journal;
use rollout_tests::project::Project;
use rollout_tests::results::{Results, TrialDirectory};
use rollout_tests::wait;
use rustix::process::Signal;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// Number of trials of the job.
const TRIALS: u64 = 10;

/// Trials that have settled when the run is killed; it runs two at a time.
const SETTLED: usize = 4;

/// A run that was killed after some of its trials had settled, with those trials.
fn killed_run() -> (Project, Results, Vec<TrialDirectory>) {
    let values = [("PROVIDER", "process"), ("ATTEMPTS", "10")];
    let project = project().tasks(["slow/second"], &[]).job("slow.yaml", &values);
    let results = project.results("slow");
    let mut run = project.rollout(&["run", "job.yaml"]);
    wait::until(DEADLINE, "some trials are settled", || results.trial_count() >= SETTLED);
    run.signal(Signal::KILL);
    let _killed = run.wait(DEADLINE);
    let settled = results.trials();
    assert!((settled.len() as u64) < TRIALS, "it was killed too late");
    (project, results, settled)
}

fn journal(results: &Results) -> PathBuf {
    results.path().join("journal/000001.log")
}

fn repair(project: &Project, arguments: &[&str]) -> String {
    let all = [&["repair", "jobs/slow"], arguments].concat();
    project.rollout(&all).wait(DEADLINE).expect_code(ExitCode::Success).stdout
}

/// Runs the job to its end; fails if a settled trial ran again.
fn assert_resumes(project: &Project, results: &Results, settled: &[TrialDirectory]) {
    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(results, TRIALS);
    for trial in settled {
        let now = results.trials().into_iter().find(|now| now.name == trial.name);
        let now = now.map(|now| now.result["exec"].clone());
        assert_eq!(now.as_ref(), Some(&trial.result["exec"]), "{} ran again", trial.name);
    }
    assert_nothing_left(project);
}

fn change_file(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("readable");
    change(&mut bytes);
    fs::write(path, bytes).expect("writable");
}

#[test]
fn journal_with_changed_bit_is_refused_and_repaired() {
    let (project, results, settled) = killed_run();
    let path = journal(&results);
    let whole = fs::read(&path).expect("readable");
    change_file(&path, |bytes| bytes[1500] ^= 16);
    let refused =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::RunDamaged);
    for text in ["000001.log is damaged at byte", "intact records follow", "rollout repair"] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    let export = ["export", "jobs/slow", "--format", "jsonl"];
    let export = project.rollout(&export).wait(DEADLINE).expect_code(ExitCode::RunDamaged);
    assert_eq!(export.stdout, "", "an export of a part looks like one of the whole");
    let _export = export.expect_stderr("rollout repair");
    let output = repair(&project, &["--dry-run"]);
    assert!(output.contains("would be restored, one bit had changed"), "{output}");
    assert_ne!(fs::read(&path).expect("readable"), whole, "a dry run changes nothing");
    let told = repair(&project, &[]);
    assert!(told.contains("restored, one bit had changed"), "{told}");
    assert_eq!(fs::read(&path).expect("readable"), whole);
    assert!(results.path().join("repair-1/000001.log").is_file(), "the damaged file is kept");
    assert_eq!(repair(&project, &[]), "nothing is damaged\n");
    assert_resumes(&project, &results, &settled);
    assert_follows_from_journal(results.path());
}

#[test]
fn repair_restores_lost_results_from_store() {
    let (project, results, settled) = killed_run();
    // Everything between the opening and the last 200 bytes.
    change_file(&journal(&results), |bytes| {
        let end = bytes.len() - 200;
        bytes[900..end].fill(b'x');
    });
    let _refused =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::RunDamaged);
    let output = repair(&project, &[]);
    for trial in &settled {
        assert!(output.contains("from the blob store"), "{} is not restored: {output}", trial.name);
    }
    assert_resumes(&project, &results, &settled);
    assert_follows_from_journal(results.path());
}

#[test]
fn repair_reruns_results_without_proof() {
    let (project, results, settled) = killed_run();
    change_file(&journal(&results), |bytes| {
        let end = bytes.len() - 200;
        bytes[900..end].fill(b'x');
    });
    fs::rename(results.path().join("../.rollout"), project.path().join("away")).expect("movable");
    let ended =
        project.rollout(&["repair", "jobs/slow"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(ended.stderr.contains("cannot find the blob store of the run"), "{}", ended.stderr);
    assert!(ended.stdout.contains("trials with a result: 0"), "{}", ended.stdout);
    assert!(!settled.is_empty());
    let arguments = ["run", "job.yaml", "--store", "jobs/.rollout/blobs"];
    let _ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(results.count("completed_trials"), TRIALS);
}

#[test]
fn repair_rewrites_damaged_documents() {
    let (project, results, settled) = killed_run();
    for name in ["manifest.json", "plan.json"] {
        let path = results.path().join(name);
        let whole = fs::read_to_string(&path).expect("readable");
        // Still JSON, but with another digest.
        let digest_offset = whole.find("sha256:").expect("it has a digest") + 10;
        change_file(&path, |bytes| {
            bytes[digest_offset] = if bytes[digest_offset] == b'0' { b'1' } else { b'0' }
        });
        for cut in [false, true] {
            if cut {
                fs::write(&path, &whole[..whole.len() / 2]).expect("writable");
            }
            let refused = project
                .rollout(&["run", "job.yaml"])
                .wait(DEADLINE)
                .expect_code(ExitCode::RunDamaged);
            let text = format!("{name} is damaged");
            assert!(refused.stderr.contains(&text), "no {text:?} in {}", refused.stderr);
            assert!(refused.stderr.contains("rollout repair"), "{}", refused.stderr);
        }
        let output = repair(&project, &[]);
        assert!(output.contains(&format!("{name}: damaged, moved aside")), "{output}");
    }
    assert_resumes(&project, &results, &settled);
    for name in ["manifest.json", "plan.json"] {
        assert!(results.path().join(name).is_file(), "{name} is missing");
    }
    assert_follows_from_journal(results.path());
}

#[test]
fn resume_rewrites_missing_or_damaged_result_files() {
    let (project, results, settled) = killed_run();
    let files: Vec<_> = settled.iter().map(|trial| trial.directory.join("result.json")).collect();
    let [first, second, third, fourth, ..] = &files[..] else { panic!("four trials had settled") };
    fs::remove_file(first).expect("removable");
    change_file(second, |bytes| bytes.truncate(20));
    let text = fs::read_to_string(third).expect("readable");
    fs::write(third, text.replace("\"reward\": 0.5", "\"reward\": 0.7")).expect("writable");
    let text = fs::read_to_string(fourth).expect("readable");
    fs::write(fourth, text.replace("\"host\": \"", "\"host\": \"x")).expect("writable");
    assert_resumes(&project, &results, &settled);
    for trial in &settled {
        let now = results.trials().into_iter().find(|now| now.name == trial.name);
        assert_eq!(now.map(|now| now.result), Some(trial.result.clone()), "{}", trial.name);
    }
}

#[test]
fn export_of_a_killed_run_has_its_settled_trials() {
    let (project, results, settled) = killed_run();
    // The process had not written these records, or only a part of one.
    for records in fs::read_dir(results.path().join("records")).expect("readable") {
        change_file(&records.expect("readable").path(), |bytes| bytes.truncate(bytes.len() / 2));
    }
    let words = ["export", "jobs/slow", "--format", "harbor", "--out", "harbor"];
    let _exported = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
    let job = project.path().join("harbor/slow");
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(job.join("result.json")).expect("a file")).expect("JSON");
    let exported = stats["stats"]["n_completed_trials"].as_u64().expect("a number");
    assert!(exported >= settled.len() as u64, "{exported} of {}", settled.len());
    let words = ["export", "jobs/slow", "--format", "jsonl"];
    let lines = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    assert_eq!(lines.lines().count() as u64, exported);
    assert_resumes(&project, &results, &settled);
}
