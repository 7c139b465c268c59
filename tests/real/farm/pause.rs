//! Pauses for a weight sync while agents call models.
//!
//! `ROLLOUT_TEST_PAUSE_SEC` sets the length of the pause. It is longer than the time limit of the
//! agents.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use rollout_coordinator::launch::farm::{FarmRequest, FarmSession};
use rollout_protocol::farm::{Completion, FarmModelCalls, GroupRequest, SampleEnd};
use rollout_protocol::limits::DOCUMENT_BYTES;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::wire::control::StopLevel;
use rollout_store::StoreUrl;
use rollout_tests::cluster::Cluster;
use rollout_tests::model_server::ModelServer;
use rollout_tests::project::Project;
use rollout_tests::wait::{self, LONG_DEADLINE};
use rollout_tests::{farm, print_notice};
use serde_json::{Value, json};

use crate::farm::{LEASE, PROGRAM};

/// Calls of each agent.
const CALLS: usize = 3;

/// Agents begin together: each waits for its line before.
const INSTALL: &str = "exec 3<>/dev/tcp/127.0.0.1/@PORT@; read -r line <&3";

/// Makes its calls one after the other. It fails at the first one that is not answered with 200.
const EXECUTE: &str = r#"
origin=${OPENAI_BASE_URL#http://}; address=${origin%%/*}
for number in 1 2 3; do
  body="{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"$number\"}]}"
  exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
  printf 'POST /openai/v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s' \
    "$OPENAI_API_KEY" "${#body}" "$body" >&3
  read -r _ status _ <&3
  cat <&3 >/dev/null
  exec 3>&-
  [ "$status" = 200 ] || { echo "call $number: $status"; exit 1; }
done
echo done >answer.txt
"#;

/// A farm of agents that call models, the server that answers them, and the listener that they wait
/// at before they begin.
struct Callers {
    samples: usize,
    pause: Duration,
    server: ModelServer,
    barrier: TcpListener,
}

impl Callers {
    fn new(samples: usize) -> Self {
        let pause = std::env::var("ROLLOUT_TEST_PAUSE_SEC").ok();
        let pause = pause.map_or(20, |seconds| seconds.parse().expect("a number of seconds"));
        Self {
            samples,
            pause: Duration::from_secs(pause),
            server: ModelServer::start(Duration::ZERO),
            barrier: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"),
        }
    }

    /// Writes the job, whose agents have less time than the pause takes.
    fn write_job(&self, project: Project) -> Project {
        let project = farm::write_job(project, EXECUTE);
        let port = self.barrier.local_addr().expect("an address").port();
        let install = serde_json::to_string(&INSTALL.replace("@PORT@", &port.to_string()));
        let job = std::fs::read_to_string(project.path().join("job.yaml")).expect("a job");
        let job = job.replace("n_concurrent_trials: 4", "n_concurrent_trials: 64");
        let job = job.replace(
            "- name: policy\n",
            &format!("- name: policy\n  install: {}\n", install.expect("a text")),
        );
        let gateway = format!(
            "gateway:\n  upstreams: [{{name: main, url: '{}/v1', hold_sec: 300}}]\n",
            self.server.origin()
        );
        let limit = self.pause.as_secs_f64() * 0.8;
        project.write("job.yaml", &format!("{job}{gateway}")).write(
            "tasks/t/task.toml",
            &format!("version = '1.0'\n[agent]\ntimeout_sec = {limit:.1}\n"),
        )
    }

    /// Lets all agents begin together.
    fn begin(&self) {
        self.barrier.set_nonblocking(true).expect("a socket");
        let mut waiting = Vec::new();
        wait::until(LONG_DEADLINE, "every agent waits to begin", || {
            waiting.extend(self.barrier.accept().map(|(agent, _)| agent));
            waiting.len() == self.samples
        });
        for mut agent in waiting {
            agent.write_all(b"begin\n").expect("it waits");
        }
    }

    /// Pauses the farm while the first call of every agent is in flight; ends those of half of them
    /// in the pause, and the others after the next version of the policy is set.
    async fn sync_weights(&self, farm: &FarmSession) {
        let n = self.samples as u64;
        self.server.hold_answers();
        farm.handle().set_policy_version(1).await.expect("set");
        let id = "callers".parse().expect("an id");
        let group = GroupRequest::new(id, "tasks/t", u32::try_from(n).expect("few"));
        farm.submit(GroupRequest { policy_version: 1, ..group }).await.expect("admitted");
        self.begin();
        let sent = || self.server.calls().len();
        wait::until(LONG_DEADLINE, "a call of each agent", || sent() == self.samples);

        let paused = farm.pause().await.expect("paused");
        let calls = paused.model_calls.expect("a gateway");
        assert_eq!(calls.unconfirmed_workers, 0, "every worker keeps calls back: {calls:?}");
        let half = n / 2;
        self.server.answer(self.samples / 2);
        let wanted = FarmModelCalls { in_flight: n - half, held: half, unconfirmed_workers: 0 };
        wait::until(LONG_DEADLINE, "the second calls are held", || {
            farm.status().model_calls == Some(wanted)
        });
        let began = Instant::now();
        wait::until(LONG_DEADLINE, "a pause beyond the agents' limit", || {
            assert_eq!(sent(), self.samples, "no call is sent in the pause");
            began.elapsed() >= self.pause
        });
        let status = farm.status();
        assert_eq!(status.model_calls, Some(wanted), "no agent has ended: {status:?}");

        let resumed = farm.resume(Some(2)).await.expect("resumed");
        assert_eq!((resumed.policy_version, resumed.pause), (2, None));
        wait::until(LONG_DEADLINE, "the held calls are sent", || {
            sent() == self.samples + self.samples / 2
        });
        self.server.answer(CALLS * self.samples);
    }

    /// Fails unless every sample completed and every call says its versions.
    async fn assert_completed(&self, farm: &FarmSession, store: &Path) {
        let mut completions = Vec::new();
        while completions.len() < self.samples {
            let after =
                completions.last().map_or(0, |last: &std::sync::Arc<Completion>| last.cursor);
            let page = farm.completions("train", after, self.samples, LONG_DEADLINE).await;
            let page = page.expect("an open farm");
            assert!(!page.completions.is_empty(), "{} came", completions.len());
            completions.extend(page.completions);
        }
        let blobs = rollout_store::open(&StoreUrl::from(store.to_owned())).await.expect("a store");
        let (mut crossed, mut kept) = (0, 0);
        for completion in &completions {
            assert_eq!(completion.result.end, SampleEnd::Completed, "{completion:#?}");
            assert_eq!(completion.result.reward, Some(1.0), "{completion:#?}");
            let execution = completion.result.execution.as_ref().expect("it ran");
            let record = execution.record.as_ref().expect("a record").digest;
            let record = blobs.get_bytes(&record, DOCUMENT_BYTES).await.expect("a record");
            let record: TrialRecord = serde_json::from_slice(&record).expect("JSON");
            let gateway = record.gateway.as_ref().expect("calls");
            assert_eq!(gateway.calls, CALLS as u64);
            let is_file = |path: &str| path == "gateway/calls.jsonl";
            let file = record.outputs.iter().find(|file| is_file(&file.path)).expect("the calls");
            let text = blobs.get_bytes(&file.blob.digest, DOCUMENT_BYTES).await.expect("the calls");
            let text = String::from_utf8(text.to_vec()).expect("UTF-8");
            let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
            let mut ended: Vec<Value> =
                lines.filter(|line: &Value| line["type"] == "ended").collect();
            ended.sort_by_key(|line| line["call"].as_u64());
            let policies: Vec<_> = ended.iter().map(|line| line["policy"].clone()).collect();
            let (old, new) =
                (json!({"dispatched": 1, "ended": 1}), json!({"dispatched": 2, "ended": 2}));
            let both = json!({"dispatched": 1, "ended": 2});
            if gateway.crossed_calls == 0 {
                assert_eq!(policies, [old, new.clone(), new]);
                kept += 1;
            } else {
                assert_eq!(policies, [both, new.clone(), new]);
                crossed += 1;
            }
        }
        assert_eq!((crossed, kept), (self.samples - self.samples / 2, self.samples / 2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_holds_new_calls_of_64_agents_and_no_limit_of_theirs_passes() {
    let callers = Callers::new(64);
    let project = callers.write_job(Project::new(PROGRAM));
    let farm =
        FarmSession::open(farm::request(project.path(), PROGRAM, None)).await.expect("a farm");
    let began = Instant::now();
    callers.sync_weights(&farm).await;
    callers.assert_completed(&farm, &project.path().join("store")).await;
    print_notice(&format!("a pause of {:?} in {:?}", callers.pause, began.elapsed()));
    farm.stop(StopLevel::Kill).await.expect("stopped");
}

#[test]
fn pause_holds_new_calls_at_workers_of_a_server() {
    let callers = Callers::new(6);
    let project = callers.write_job(Project::new(PROGRAM));
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.with_lease(LEASE)) else {
        return;
    };
    let _workers = [cluster.worker("a", 3).started(), cluster.worker("b", 3).started()];
    let url = cluster.server.url();
    let request = farm::request(cluster.project.path(), PROGRAM, Some((&url, LEASE)));
    let request = FarmRequest { store: Some(StoreUrl::from(cluster.store())), ..request };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let farm = FarmSession::open(request).await.expect("a farm");
        callers.sync_weights(&farm).await;
        callers.assert_completed(&farm, &cluster.store()).await;
        farm.stop(StopLevel::Kill).await.expect("stopped");
    });
}
