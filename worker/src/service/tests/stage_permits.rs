//! Tests of permits of the stages of evals.

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::spec::environment::{
    EnvironmentRates, EnvironmentSpec, PreservePolicy, ProcessSettings, ProviderSpec,
};
use rollout_protocol::spec::eval::{
    CommitBundle, EvalCommand, EvalCommands, EvalOrigin, EvalSpec, EvalStage, RepositorySpec,
};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits};
use rollout_protocol::wire::report::ReportBody;
use rollout_protocol::wire::stage::{PermitKinds, StageProgress, StageStep};

use super::harness::{FIRST, ServiceFixture, result};
use super::*;

/// A spec that the scripted runner never reads.
fn eval_spec() -> EvalSpec {
    let command = || EvalCommand {
        script: "true".into(),
        agent: None,
        timeout_sec: None,
        env: BTreeMap::new(),
    };
    let blob =
        BlobRef { digest: Digest::sha256(b""), size_bytes: 0, media_type: Some(MediaType::Text) };
    let root = CommitBundle { commit: "00".into(), parent: None, blob: blob.clone() };
    EvalSpec {
        name: EvalOrigin { tree: "run".into(), node: "0000".into(), eval: "0001".into() },
        repository: RepositorySpec { root, chain: Vec::new() },
        idea: blob,
        message: String::new(),
        commands: EvalCommands {
            implement: command(),
            tests: None,
            review: None,
            sweep: command(),
        },
        timeout_sec: None,
        environment: TaskEnvironment::default(),
        settings: EnvironmentSpec {
            provider: ProviderSpec::Process(ProcessSettings::default()),
            force_build: false,
            preserve_env: PreservePolicy::Never,
            rates: EnvironmentRates::default(),
        },
        sweep_environment: None,
        user: None,
        results_file: "results.csv".into(),
        sweep_config_limit: None,
        env: BTreeMap::new(),
        gateway: None,
        secrets: BTreeSet::new(),
    }
}

/// A worker with an eval whose commands of these kinds need permits.
async fn fixture(permits: PermitKinds) -> ServiceFixture {
    let scene = ServiceFixture::new();
    let rate_limits = RunRateLimits { permits, ..RunRateLimits::default() };
    let spec = scene.store.inner().put_value(&eval_spec());
    let offer =
        Offer { spec, work: OfferedWork::Eval, rate_limits, ..scene.sample.offer(1, FIRST) };
    scene.queue.offer(&[offer]).await.expect("offered");
    scene
}

#[tokio::test(start_paused = true)]
async fn eval_that_starts_over_requests_permits_of_earlier_stages_anew() {
    let scene = fixture(PermitKinds { llm: true, sweep: true }).await;
    for (restarts, stage) in [
        (0, EvalStage::Implement),
        (0, EvalStage::Sweep),
        (1, EvalStage::Implement),
        (1, EvalStage::Sweep),
    ] {
        let waiting = StageProgress { restarts, stage, step: StageStep::Waiting };
        scene
            .until("its heartbeat shows that it waits", async || {
                scene.heartbeat_entries().await.iter().any(|entry| entry.stage == Some(waiting))
            })
            .await;
        loop {
            let progress = scene.answer_claim(ClaimAnswer::Run).await.stage.expect("a stage");
            if progress == waiting {
                break;
            }
            assert_eq!(progress.step, StageStep::Over, "{progress:?}");
        }
    }
    let reports = scene.reports(2).await;
    assert_eq!(reports[0].body, ReportBody::Started);
    result(&reports[1]);
    scene.until_acknowledged().await;
}

#[tokio::test(start_paused = true)]
async fn eval_that_starts_over_returns_permit_in_a_stage_that_needs_none() {
    let scene = fixture(PermitKinds { llm: false, sweep: true }).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 4 {
        seen.extend(scene.answer_claim(ClaimAnswer::Run).await.stage);
    }
    let progress = |restarts, stage, step| StageProgress { restarts, stage, step };
    let expected = [
        progress(0, EvalStage::Sweep, StageStep::Waiting),
        progress(1, EvalStage::Implement, StageStep::Running),
        progress(1, EvalStage::Sweep, StageStep::Waiting),
        progress(1, EvalStage::Sweep, StageStep::Over),
    ];
    assert_eq!(seen, BTreeSet::from(expected));
    result(&scene.reports(2).await[1]);
    scene.until_acknowledged().await;
}
