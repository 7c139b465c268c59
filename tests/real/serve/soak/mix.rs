//! The work of one round: runs, a search and a farm at once, one kill meanwhile, and the removal of all
//! of it.

use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::http::HttpClient;
use rollout_tests::search::ExampleSearch;
use rollout_tests::wait::{self, LONG_DEADLINE};
use serde_json::{Value, json};

use crate::serve::datasets::uploaded;
use crate::serve::farm_fleet::FarmFleet;
use crate::serve::farms::{completions, farm_project, farm_request, group, opened, wait_for};
use crate::serve::soak::figures::FileFigures;
use crate::serve::{DEADLINE, search, submitted};

/// Trials of a run.
pub(super) const TRIALS: usize = 20;

/// Groups of a farm, and samples of each.
const GROUPS: usize = 4;
const SAMPLES: u32 = 6;

/// The work of agents.
const AGENT: &str = "echo done >answer.txt";

/// The part that a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    Nothing,
    Worker,
    Nats,
    Serve,
}

/// The kills of rounds, again and again.
pub(super) const KILLS: [Kill; 4] = [Kill::Nothing, Kill::Worker, Kill::Nats, Kill::Serve];

/// The work of a round, after its end.
#[derive(Debug)]
pub(super) struct Work {
    /// Paths of all runs, searches and farms.
    paths: Vec<String>,
    /// The run that was cancelled, by the name that the NATS server knows.
    pub(super) cancelled: String,
    /// Trials, evals and samples that have ended.
    pub(super) items: usize,
    /// Files of a run.
    pub(super) run: FileFigures,
    /// Journal of a farm, in bytes for each sample.
    pub(super) bytes_per_sample: u64,
}

/// A server for all kinds of work, with its workers; without a nats-server, the test is ignored.
pub(super) fn fleet() -> Option<FarmFleet> {
    let search = ExampleSearch::example("tree.yaml")
        .with_replacement("max_depth: 3", "max_depth: 1")
        .with_replacement("eval_timeout_seconds: 8", "eval_timeout_seconds: 3")
        .with_replacement("k < 2000", "k < 300");
    let project = search.write(farm_project());
    let examples = project.path().join("examples").display().to_string();
    FarmFleet::start(project, &["--allow-path", &examples], ("ROLLOUT_TEST_UNUSED", ""))
}

impl Work {
    /// Does the work of a round. Returns when all of it has ended as it should.
    pub(super) fn run(fleet: &mut FarmFleet, number: usize, kill: Kill) -> Self {
        let client = fleet.daemon.client.clone();
        let farm = opened(&client, &farm_request(&fleet.cluster.project, AGENT));
        let runs = submit_runs(fleet, number);
        let searched = submitted(&client, &search::submission(&fleet.cluster.project));
        wait_for(&client, &farm, "running");
        for id in 0..GROUPS {
            let admitted = group(&format!("g{id}"), SAMPLES);
            let _admitted = client.post(&format!("{farm}/groups"), &[], &admitted).expect(201);
        }
        wait::until(DEADLINE, "trials have ended", || {
            ended_trials(&client, &runs[0]) >= TRIALS / 4
        });
        let cancelled = format!("/v1/runs/{}/cancel", runs[2]);
        let _cancelled = client.post(&cancelled, &[], &Value::Null).expect(202);
        kill.apply(fleet);

        let mut items = end_farm(&client, &farm);
        let bytes_per_sample = journal_bytes(&directory(fleet, &farm)) / items as u64;
        for (id, state) in
            [(&runs[0], "completed"), (&runs[1], "completed"), (&runs[2], "cancelled")]
        {
            fleet.daemon.wait_for(id, &[state]);
            items += ended_trials(&client, id);
        }
        assert!(items >= 2 * TRIALS + GROUPS * SAMPLES as usize, "{items}");
        fleet.daemon.wait_for(&searched, &["completed"]);
        let overview = client.get(&format!("/v1/runs/{searched}/search")).expect(200).json();
        items += number_at(&overview, "settled");
        // The events of everything are read.
        for id in runs.iter().chain([&searched]) {
            let mut events = client.follow(&format!("/v1/runs/{id}/events"), &[]);
            assert!(events.any(|line| line == "event: end"), "the events of {id} end");
        }
        let run =
            FileFigures::below(&fleet.cluster.project.path().join("state/jobs").join(&runs[0]));
        let paths = runs.iter().chain([&searched]).map(|id| format!("/v1/runs/{id}"));
        let cancelled = client.get(&format!("/v1/runs/{}", runs[2])).expect(200).json();
        let cancelled = cancelled["progress"]["run"].as_str().expect("its name").to_owned();
        let paths = paths.chain([farm]).collect();
        Self { paths, cancelled, items, run, bytes_per_sample }
    }

    /// Number of runs, searches and farms.
    pub(super) fn ended(&self) -> usize {
        self.paths.len()
    }

    /// Removes all of it, and what nothing needs any more.
    pub(super) fn delete(&self, fleet: &FarmFleet) {
        for path in &self.paths {
            let deleted = fleet.daemon.client.send("DELETE", path, &[], b"");
            let _deleted = deleted.expect("an answer").expect(204);
        }
        let project = &fleet.cluster.project;
        let store = fleet.cluster.store().display().to_string();
        for words in [
            ["gc", "--store", &store, "--grace", "0s"],
            ["gc", "--uploads", "state", "--grace", "0s"],
        ] {
            let _ended = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
        }
        let queue = fleet.cluster.command(&["gc", "--queue"]);
        let _ended = queue.wait(DEADLINE).expect_code(ExitCode::Success);
    }
}

impl Kill {
    /// kill -9, and a restart.
    fn apply(self, fleet: &mut FarmFleet) {
        match self {
            Self::Nothing => {}
            Self::Worker => fleet.restart_worker(0),
            Self::Nats => fleet.restart_server(),
            Self::Serve => fleet.restart_daemon(),
        }
    }
}

/// Submits three runs: of tasks on the server, of uploaded tasks that no other round has, and one that will
/// be cancelled.
fn submit_runs(fleet: &FarmFleet, number: usize) -> [String; 3] {
    let project = &fleet.cluster.project;
    let document = farm_request(project, AGENT)["document"].clone();
    let own = project.path().join("uploaded");
    rollout_tests::project::copy(&project.path().join("tasks"), &own, &[]);
    project.write_file("uploaded/t/instruction.md", &format!("Write the answer {number}.\n"));
    let dataset = uploaded(&fleet.daemon.client, project, &own);
    let tasks = document["datasets"][0]["path"].clone();
    [tasks.clone(), json!(dataset), tasks].map(|path| {
        let mut document = document.clone();
        document["name"] = json!("run");
        document["n_attempts"] = json!(TRIALS);
        document["datasets"] = json!([{ "path": path }]);
        submitted(&fleet.daemon.client, &json!({ "document": document }))
    })
}

fn number_at(document: &Value, key: &str) -> usize {
    let number = document[key].as_u64().unwrap_or_default();
    usize::try_from(number).expect("few")
}

fn ended_trials(client: &HttpClient, id: &str) -> usize {
    let run = client.get(&format!("/v1/runs/{id}")).expect(200).json();
    number_at(&run["progress"], "completed")
}

/// Takes every completion of a farm, each once, and closes it.
fn end_farm(client: &HttpClient, farm: &str) -> usize {
    wait_for(client, farm, "running");
    let samples = GROUPS * SAMPLES as usize;
    let found = completions(client, farm, samples);
    assert!(found.iter().all(|one| one["reward"] == 1.0), "{found:#?}");
    let cursors: Vec<_> = found.iter().map(|one| one["cursor"].clone()).collect();
    let post = |verb: &str, body: &Value| {
        client.post(&format!("{farm}/{verb}"), &[], body).expect(200).json()
    };
    let taken = post("ack", &json!({ "cursors": cursors }));
    assert_eq!(taken["acknowledged"], json!(samples), "{taken}");
    let _closed = post("close", &Value::Null);
    wait::until(LONG_DEADLINE, "the farm ends", || {
        client.get(farm).expect(200).json()["is_final"] == true
    });
    let status = client.get(farm).expect(200).json();
    assert_eq!(status["status"]["totals"]["usable"], json!(samples), "{status:#}");
    samples
}

/// The directory of a farm with this path.
fn directory(fleet: &FarmFleet, path: &str) -> std::path::PathBuf {
    let id = path.rsplit('/').next().expect("an id");
    fleet.cluster.project.path().join("state/jobs").join(id)
}

/// Size of the journal in a directory of a run or a farm.
fn journal_bytes(directory: &Path) -> u64 {
    let segments = rollout_tests::leak_check::directory_entries(&directory.join("journal"));
    segments.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum()
}
