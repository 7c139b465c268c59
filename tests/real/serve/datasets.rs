//! Uploaded datasets: each is for those who uploaded it.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use rollout_protocol::digest::Digest;
use rollout_store::archive::{self, ArchiveLimits, FilterDecision};
use rollout_tests::http::{HttpAnswer, HttpClient};
use rollout_tests::leak_check::directory_entries;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::tokens::{WITH_USERS, with_users};
use crate::serve::{DEADLINE, DaemonProcess, project, submission};

/// Beginning of the name of an uploaded dataset in a document.
const DATASET: &str = "dataset:";

/// Uploads a directory as the user of a client, and returns the name by which documents know it.
pub(crate) fn uploaded(client: &HttpClient, project: &Project, directory: &Path) -> String {
    let tar = project.path().join("upload.tar");
    let _absent = fs::remove_file(&tar);
    archive::pack(directory, &tar, ArchiveLimits::BUNDLE, &|_, _| FilterDecision::Include)
        .expect("packed");
    let bytes = fs::read(&tar).expect("read");
    let digest = Digest::sha256(&bytes).hex();
    let sent = client.send("PUT", &format!("/v1/datasets/{digest}"), &[], &bytes);
    let _stored = sent.expect("an answer").expect(204);
    format!("{DATASET}{digest}")
}

/// The answers to everything that a user can ask about a dataset by its name, without its digest.
fn answers(client: &HttpClient, project: &Project, dataset: &str) -> Vec<(u16, Value)> {
    let names = [json!(dataset), json!(format!("{dataset}/second"))];
    answers_about(client, project, dataset, &names)
}

/// The answers to a user who names the directory of a dataset on the server.
fn answers_by_path(client: &HttpClient, project: &Project, dataset: &str) -> Vec<(u16, Value)> {
    let stored = project.path().join("state/datasets").join(&dataset[DATASET.len()..]);
    let mut found = answers_about(client, project, dataset, &[json!(stored)]);
    let _of_its_name = found.remove(0);
    found
}

fn answers_about(
    client: &HttpClient,
    project: &Project,
    dataset: &str,
    paths: &[Value],
) -> Vec<(u16, Value)> {
    let digest = &dataset[DATASET.len()..];
    let documents = paths.iter().flat_map(|path| {
        let mut job = submission(project, 1)["document"].clone();
        job["datasets"] = json!([{ "path": path }]);
        let mut one = submission(project, 1)["document"].clone();
        one["datasets"] = json!([]);
        one["tasks"] = json!([{ "path": path }]);
        [job, one]
    });
    let runs = documents.flat_map(|document| {
        let run = client.post("/v1/runs", &[], &json!({ "document": document }));
        let farm = json!({ "name": "policy", "document": document });
        [run, client.post("/v1/farms", &[], &farm)]
    });
    let asked = client.get(&format!("/v1/datasets/{digest}"));
    let answer = |answer: HttpAnswer| {
        let text = answer.text().replace(digest, "DIGEST");
        let mut body: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(members) = body.as_object_mut() {
            members.remove("request_id");
        }
        (answer.status, body)
    };
    std::iter::once(asked).chain(runs).map(answer).collect()
}

#[test]
fn dataset_of_a_user_looks_absent_to_others_until_they_upload_it() {
    let (project, mut daemon) = with_users();
    let tasks = project.path().join("tasks");
    fs::create_dir(tasks.join(".x")).expect("made");
    fs::write(tasks.join(".x/file"), "no task").expect("written");
    let absent = format!("{DATASET}{}", "0".repeat(64));
    let user = |daemon: &DaemonProcess, token: &str| daemon.client.with_token(token);
    let dataset = uploaded(&user(&daemon, "ada-token"), &project, &tasks);
    // A hidden directory of the dataset looks absent to others, too. Its user may name it.
    let hidden = |token: &str, dataset: &str| {
        let named = [json!(format!("{dataset}/.x"))];
        answers_about(&user(&daemon, token), &project, dataset, &named)
    };
    assert_eq!(hidden("bob-token", &dataset), hidden("bob-token", &absent));
    assert_ne!(&hidden("ada-token", &dataset)[1..], &hidden("ada-token", &absent)[1..]);
    // It is durable when the upload is answered.
    for _restart in 0..2 {
        let of_bob = answers(&user(&daemon, "bob-token"), &project, &dataset);
        assert_eq!(of_bob, answers(&user(&daemon, "bob-token"), &project, &absent));
        assert!(of_bob.iter().all(|(status, _)| [404, 422].contains(status)), "{of_bob:#?}");
        for owner in ["ada-token", "root-token"] {
            let owner = user(&daemon, owner);
            let found = answers(&owner, &project, &dataset);
            assert!(found.iter().all(|(status, _)| [201, 204].contains(status)), "{found:#?}");
            // It would tell where the server has its files.
            let by_path = answers_by_path(&owner, &project, &dataset);
            assert_eq!(by_path, answers_by_path(&owner, &project, &absent));
            assert!(by_path.iter().all(|(status, _)| *status == 422), "{by_path:#?}");
        }
        daemon.process.signal(Signal::KILL);
        let _killed = daemon.process.wait(DEADLINE);
        daemon = DaemonProcess::start(&project, &WITH_USERS);
    }
    assert_eq!(uploaded(&user(&daemon, "bob-token"), &project, &tasks), dataset);
    for owner in ["ada-token", "bob-token"] {
        let found = answers(&user(&daemon, owner), &project, &dataset);
        assert!(found.iter().all(|(status, _)| [201, 204].contains(status)), "{found:#?}");
    }
    // One without a record of its users, as after a damage of the disk.
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    let record = project.path().join("state/dataset-users").join(&dataset[DATASET.len()..]);
    fs::remove_file(record).expect("removed");
    let daemon = DaemonProcess::start(&project, &WITH_USERS);
    let of_ada = answers(&user(&daemon, "ada-token"), &project, &dataset);
    assert_eq!(of_ada, answers(&user(&daemon, "ada-token"), &project, &absent));
    let path = format!("/v1/datasets/{}", &dataset[DATASET.len()..]);
    let _there = user(&daemon, "root-token").get(&path).expect(204);
    daemon.stop();
}

#[test]
fn upload_during_which_the_server_is_killed_leaves_nothing_and_is_sent_again() {
    let project = project().tasks(["slow/second"], &[]);
    let mut daemon = DaemonProcess::start(&project, &[]);
    let uploads = project.path().join("state/datasets");
    let path = format!("/v1/datasets/{}", "1".repeat(64));
    let mut upload = daemon.client.begin("PUT", &path, &[("content-length", "1048576")]);
    upload.write_all(&vec![b'x'; 512 * 1024]).expect("sent");
    wait::until(DEADLINE, "a part of the upload on the disk", || {
        let mut parts = directory_entries(&uploads).into_iter();
        parts.any(|part| part.metadata().is_ok_and(|part| part.is_dir() || part.len() > 0))
    });
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    let daemon = DaemonProcess::start(&project, &[]);
    assert!(directory_entries(&uploads).is_empty(), "{:?}", directory_entries(&uploads));
    let _absent = daemon.client.get(&path).expect(404);
    let dataset = uploaded(&daemon.client, &project, &project.path().join("tasks"));
    let of_owner = answers(&daemon.client, &project, &dataset);
    assert!(of_owner.iter().all(|(status, _)| [201, 204].contains(status)), "{of_owner:#?}");
    daemon.stop();
}

#[test]
fn files_of_a_search_in_an_upload_look_absent_to_others() {
    let (project, daemon) = with_users();
    let [ada, bob] = ["ada-token", "bob-token"].map(|token| daemon.client.with_token(token));
    project.write_file("upload/x/base.csv", "config_id\n");
    let dataset = uploaded(&ada, &project, &project.path().join("upload"));
    let (baseline, ideas) = ("root_baseline_csv", "context_ideas_dirs");
    let file = json!(format!("{dataset}/x/base.csv"));
    let directories = json!([format!("{dataset}/x")]);
    let answer = |client: &HttpClient, key: &str, value: &Value| {
        let command = json!({ "run": "true" });
        let mut search = json!({
            "repository": project.path().join("tasks"),
            "root_baseline_csv": file,
            "environment": { "type": "process" },
            "commands": { "ideas": command, "implement": command, "sweep": command },
        });
        search[key] = value.clone();
        let answer = client.post("/v1/runs", &[], &json!({ "kind": "tree", "document": search }));
        let mut body = answer.json();
        body.as_object_mut().expect("members").remove("request_id");
        (answer.status, body)
    };
    for (key, value) in [(baseline, &file), (ideas, &directories)] {
        let (status, body) = answer(&ada, key, value);
        assert_eq!(status, 201, "{key}: {body:#}");
    }
    let absent = json!(format!("{DATASET}{}/x/base.csv", "0".repeat(64)));
    let missing = answer(&ada, baseline, &absent);
    assert_eq!(missing.0, 422, "{:#}", missing.1);
    assert_eq!(missing.1["type"], "urn:rollout:problem:missing-dataset");
    for (client, key, value) in [
        (&bob, baseline, file.clone()),
        (&bob, ideas, directories),
        (&ada, baseline, json!(format!("{dataset}/../x/base.csv"))),
        (&ada, baseline, json!(format!("{dataset}/x/../x/base.csv"))),
        (&ada, baseline, json!(format!("{dataset}/x/none.csv"))),
        (&ada, baseline, json!(format!("{dataset}/x"))),
        (&ada, ideas, json!([format!("{dataset}/x/base.csv")])),
    ] {
        assert_eq!(answer(client, key, &value), missing, "{key}: {value}");
    }
    daemon.stop();
}
