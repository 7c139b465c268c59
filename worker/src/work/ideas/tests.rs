mod start_wait;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::time::Duration;

use rollout_base::secrets::TrialVariables;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_environment::{ByteStream, FailureKind, HostProxies};
use rollout_protocol::blob::MediaType;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, TrialError};
use rollout_protocol::record::{IdeasEnd, IdeasRecord};
use rollout_protocol::spec::eval::{EvalCommand, EvalStage, RepositorySpec};
use rollout_protocol::spec::ideas::{EarlierIdeas, IdeasOrigin};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::template::Template;
use rollout_protocol::wire::control::StopLevel;
use rollout_store::archive::{self, ArchiveLimits, FilterDecision};
use rollout_store::git::testing::UserRepository;
use rollout_store::testing::{raw_entry, raw_entry_with_mode};
use rollout_store::{BlobStore as _, MemoryStore};
use tar::EntryType;

use super::*;
use crate::executor::Finished;
use crate::work::eval::Repositories;
use crate::work::eval::testing::{PermitEvent, PermitRecorder};
use crate::work::trial::testing::{TrialFixture, settings};

/// A command that writes ideas, over the scripted provider.
struct IdeasFixture {
    store: Arc<MemoryStore>,
    repositories: Repositories,
    rig: TrialFixture,
    spec: IdeasSpec,
    dir: tempfile::TempDir,
    executions: u32,
    permits: Arc<dyn StagePermits>,
    _user: UserRepository,
}

async fn packed(store: &MemoryStore, files: &[(&str, &str)]) -> rollout_protocol::blob::BlobRef {
    let dir = tempfile::tempdir().expect("a directory");
    let (from, tar) = (dir.path().join("files"), dir.path().join("files.tar"));
    std::fs::create_dir(&from).expect("made");
    for (name, text) in files {
        std::fs::write(from.join(name), text).expect("written");
    }
    archive::pack(&from, &tar, ArchiveLimits::BUNDLE, &|_, _| FilterDecision::Include)
        .expect("packed");
    store.put_file(&tar, MediaType::Tar).await.expect("stored")
}

impl IdeasFixture {
    async fn new(script: &str) -> Self {
        let (dir, store) = (tempfile::tempdir().expect("a directory"), Arc::default());
        let store: Arc<MemoryStore> = store;
        let repositories = Repositories::open(dir.path(), store.clone(), 1 << 30).expect("opened");
        let user = UserRepository::default();
        user.write("value", "1\n");
        std::os::unix::fs::symlink("/etc/passwd", user.path().join("outside")).expect("linked");
        let root = user.stored(&user.commit("root"), store.as_ref()).await;
        let mut rig = TrialFixture::new().await;
        rig.store = store.clone();
        let env = BTreeMap::from([("KEY".to_owned(), Template::new("${KEY:-none}"))]);
        let archive = packed(&store, &[("one.md", "- One")]).await;
        let spec = IdeasSpec {
            name: IdeasOrigin { tree: "run".into(), node: "0000".into() },
            repository: RepositorySpec { root, chain: Vec::new() },
            command: EvalCommand {
                script: script.to_owned(),
                agent: None,
                timeout_sec: Some(60.0),
                env,
            },
            environment: TaskEnvironment {
                docker_image: Some("image".into()),
                ..TaskEnvironment::default()
            },
            settings: settings().environment,
            count: 3,
            earlier: vec![EarlierIdeas { name: "00-prior".into(), archive }],
            pack: packed(&store, &[("history.md", "# History\n")]).await,
            gateway: None,
            secrets: BTreeSet::new(),
        };
        let permits = Arc::new(());
        Self { store, repositories, rig, spec, dir, executions: 0, permits, _user: user }
    }

    fn context(&self) -> IdeasContext {
        let scratch = self.dir.path().join(format!("scratch-{}", self.executions));
        IdeasContext {
            execution: self.rig.execution(scratch),
            ideas: Arc::new(self.spec.clone()),
            permits: self.permits.clone(),
        }
    }

    async fn run(&mut self) -> IdeasRecord {
        self.executions += 1;
        let context = self.context();
        let finished = super::run(context, &self.rig.services(), &self.repositories).await;
        assert_eq!(self.rig.provider.leaked(), Vec::<String>::new(), "{finished:?}");
        finished.store(self.store.as_ref()).await.expect("stored")
    }

    /// Files in an archive of the record, by path.
    async fn files(
        &self,
        archive: Option<&rollout_protocol::record::LogsRecord>,
    ) -> BTreeMap<String, String> {
        let Some(archive) = archive else { return BTreeMap::new() };
        let bytes = self.store.get_bytes(&archive.archive.digest, 1 << 24).await.expect("stored");
        let mut tar = tar::Archive::new(Cursor::new(bytes));
        let entries = tar.entries().expect("an archive");
        let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
            let mut entry = entry.expect("an entry");
            let mut text = String::new();
            std::io::Read::read_to_string(&mut entry, &mut text).expect("text");
            (entry.path().expect("a path").display().to_string(), text)
        };
        entries.map(read).collect()
    }

    async fn output(&self, record: &IdeasRecord, path: &str) -> String {
        let Some(output) = record.outputs.iter().find(|output| output.path == path) else {
            return String::new();
        };
        let bytes = self.store.get_bytes(&output.blob.digest, 1 << 20).await.expect("stored");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Makes `/ideas` return an archive.
    fn archived(&self, members: &[Vec<u8>]) {
        self.streamed([members.concat(), vec![0; 1024]].concat());
    }

    /// Makes `/ideas` return these bytes.
    fn streamed(&self, bytes: Vec<u8>) {
        self.rig.provider.set_hostile_reader(Arc::new(move |path: &str| {
            let stream: ByteStream = Box::new(Cursor::new(bytes.clone()));
            (path == variables::IDEAS).then_some(Some(stream))
        }));
    }
}

fn message(record: &IdeasRecord) -> &str {
    assert_eq!(record.end, IdeasEnd::Failed);
    &record.error.as_ref().expect("an error").message
}

#[tokio::test]
async fn ideas_command_gets_inputs_and_ideas_are_kept() {
    let script = "test -d $ROLLOUT_REPOSITORY; test -f value; cat value\n\
        echo $ROLLOUT_CONTEXT_IDEAS_DIRS; cat /context/00-prior/one.md\n\
        cat $ROLLOUT_CONTEXT_PACK_DIR/history.md\n\
        echo \"$ROLLOUT_TREE $ROLLOUT_NODE_ID $ROLLOUT_STAGE $ROLLOUT_IDEAS_COUNT $KEY\"\n\
        echo '- Faster' > $ROLLOUT_IDEAS_DIR/a.md; echo 'Slower' > /ideas/b.md\n\
        echo note > $ROLLOUT_LOGS_DIR/note; echo 0.5 > $ROLLOUT_COST_FILE\n\
        background watcher";
    let mut bench = IdeasFixture::new(script).await;
    let record = bench.run().await;
    assert_eq!((record.end, &record.error), (IdeasEnd::Written, &None));
    assert_eq!((record.secondary_errors.len(), record.reported_cost), (0, Some(0.5)));
    let ideas = bench.files(record.ideas.as_ref()).await;
    let wanted = [("a.md", "- Faster\n"), ("b.md", "Slower\n")];
    assert_eq!(ideas, wanted.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
    let printed = "1\n/context/00-prior\n- One# History\nrun 0000 ideas 3 none\n";
    assert_eq!(bench.output(&record, "stdout.txt").await, printed);
    assert_eq!(bench.files(record.logs.as_ref()).await["note"], "note\n");
    assert_eq!(record.command.as_ref().and_then(|command| command.exit_code), Some(0));
    assert_eq!(bench.rig.provider.existing(), Vec::<String>::new());
}

#[tokio::test]
async fn ideas_command_finds_its_limits() {
    let mut bench = IdeasFixture::new("cat $ROLLOUT_LIMITS; echo x > /ideas/a.md").await;
    let record = bench.run().await;
    let env = &bench.rig.provider.commands()[0].env;
    assert_eq!(env["ROLLOUT_TIMEOUT_SEC"], "60");
    let deadline = &env["ROLLOUT_DEADLINE"];
    let printed = format!("{{\"timeout_sec\":60.0,\"deadline\":{deadline}}}\n");
    assert_eq!(bench.output(&record, "stdout.txt").await, printed);
}

#[tokio::test]
async fn ideas_checkout_has_no_git_dir_or_outside_symlink() {
    for absent in ["/repository/.git", "/repository/outside"] {
        let mut bench = IdeasFixture::new(&format!("echo x > /ideas/a.md; test -e {absent}")).await;
        assert!(message(&bench.run().await).contains("code 1"), "{absent}");
    }
}

#[tokio::test]
async fn ideas_command_failed_or_timed_out_reports_output() {
    let mut bench = IdeasFixture::new("echo x > /ideas/a.md; echo no quota >&2; exit 3").await;
    let record = bench.run().await;
    assert_eq!(message(&record), "ideas: the command ended with code 3: no quota");
    assert_eq!(record.error.as_ref().map(|error| error.class), Some(ErrorClass::Agent));
    assert!(record.ideas.is_none());
    bench.spec.command.script = "echo x > /ideas/a.md; sleep 1000".to_owned();
    bench.spec.command.timeout_sec = Some(0.2);
    assert_eq!(message(&bench.run().await), "ideas: the command exceeded its time limit of 200ms");
    bench.spec.command.script = "echo thinking >&2".to_owned();
    assert_eq!(message(&bench.run().await), "the command wrote no idea: thinking");
    bench.spec.command.env.insert("KEY".into(), Template::new("${NOT_SET}"));
    assert!(message(&bench.run().await).contains("NOT_SET"));
}

#[tokio::test]
async fn ideas_record_names_host_even_of_command_not_run() {
    let mut bench = IdeasFixture::new("echo x > /ideas/a.md").await;
    assert_eq!(bench.run().await.host, "host");
    let error = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, "not run");
    let finished = Finished::<IdeasRecord>::failed(&bench.context(), error);
    assert_eq!(finished.record.host, "host");
}

#[tokio::test]
async fn ideas_directory_entries_not_ideas_are_left_out() {
    use EntryType::{Directory, Fifo, Regular, Symlink};
    let mut bench = IdeasFixture::new("echo").await;
    let large = vec![b'x'; 300 * 1024];
    let entry = |name: &str, kind, link: &str, content: &[u8]| {
        raw_entry(name.as_bytes(), kind, link.as_bytes(), content)
    };
    bench.archived(&[
        entry("ideas/", Directory, "", b""),
        entry("ideas/link.md", Symlink, "/etc/passwd", b""),
        entry("ideas/pipe.md", Fifo, "", b""),
        entry("ideas/../../up.md", Regular, "", b"- Up"),
        entry("ideas/below/", Directory, "", b""),
        entry("ideas/below/deep.md", Regular, "", b"- Deep"),
        entry("ideas/.hidden.md", Regular, "", b"- Hidden"),
        entry("ideas/bad\u{7}name.md", Regular, "", b"- Bell"),
        raw_entry(b"ideas/\xff.md", Regular, b"", b"- Bytes"),
        entry("ideas/blank.md", Regular, "", b" \n"),
        entry("ideas/large.md", Regular, "", &large),
        raw_entry_with_mode(b"ideas/good.md", Regular, b"", b"- Good", 0o777),
    ]);
    let record = bench.run().await;
    let ideas = bench.files(record.ideas.as_ref()).await;
    assert_eq!(ideas.into_keys().collect::<Vec<_>>(), ["good.md"]);
    let told = record.left_out.join("\n");
    for name in ["below", ".hidden.md", "bad", "blank.md", "large.md", "3 links, special"] {
        assert!(told.contains(name), "{name} not in {told}");
    }
    assert!(!told.contains("good.md"));
}

#[tokio::test]
async fn ideas_directory_above_limits_gives_no_ideas() {
    let mut bench = IdeasFixture::new("echo").await;
    let file = |n: u32| raw_entry(format!("ideas/{n}").as_bytes(), EntryType::Regular, b"", b"x");
    bench.archived(&(0..1100).map(file).collect::<Vec<_>>());
    assert!(message(&bench.run().await).contains("1000 entries"));
    // The directory itself was replaced.
    bench.archived(&[raw_entry(b"ideas", EntryType::Symlink, b"/etc", b"")]);
    let record = bench.run().await;
    assert!(message(&record).contains("the command wrote no idea"), "{record:?}");
}

#[tokio::test]
async fn ideas_not_read_to_their_end_are_retryable() {
    let mut bench = IdeasFixture::new("echo").await;
    let mut cut_off = raw_entry(b"ideas/a.md", EntryType::Regular, b"", &[b'x'; 2000]);
    cut_off.truncate(1500);
    bench.streamed(cut_off);
    let record = bench.run().await;
    assert!(message(&record).contains("cannot read the ideas"), "{record:?}");
    let error = record.error.expect("an error");
    assert_eq!((error.class, error.is_retryable()), (ErrorClass::Infrastructure, true));
}

#[tokio::test]
async fn ideas_secrets_are_redacted_in_outputs_and_errors() {
    let script = "echo $KEY; echo \"- $KEY\" > /ideas/a.md; echo $KEY > /logs/key; exit 0";
    let mut bench = IdeasFixture::new(script).await;
    bench.rig.variables = TrialVariables::new([("KEY".into(), "hunter2-hunter2".into())]);
    let record = bench.run().await;
    let kept = bench.files(record.ideas.as_ref()).await["a.md"].clone()
        + &bench.output(&record, "stdout.txt").await
        + &bench.files(record.logs.as_ref()).await["key"];
    assert!(!kept.contains("hunter2") && kept.contains("[redacted:KEY]"), "{kept}");
    bench.spec.command.script = "echo $KEY >&2; exit 1".to_owned();
    assert!(!message(&bench.run().await).contains("hunter2"));
}

#[tokio::test]
async fn ideas_have_proxies_of_host_with_masked_logins() {
    let script = "echo $HTTP_PROXY $no_proxy; echo x > /ideas/a.md";
    let mut bench = IdeasFixture::new(script).await;
    let proxies = [("HTTP_PROXY", "http://me:hunter2@h:1".to_owned())];
    bench.rig.provider.set_proxies(HostProxies::new(proxies));
    let record = bench.run().await;
    let printed = bench.output(&record, "stdout.txt").await;
    assert_eq!(printed, "http://[redacted:HTTP_PROXY]@h:1 localhost,127.0.0.1,::1\n");
}

#[tokio::test]
async fn ideas_stop_ends_command_and_leaves_no_environment() {
    let mut bench = IdeasFixture::new("echo x > /ideas/a.md; sleep 1000").await;
    bench.rig.stop.send_replace(Some(StopLevel::Drain));
    assert_eq!(bench.run().await.end, IdeasEnd::Stopped);
    assert_eq!(bench.rig.provider.calls(), []);
    bench.rig.stop.send_replace(None);
    let (provider, stop) = (bench.rig.provider.clone(), bench.rig.stop.clone());
    let killing = async {
        while provider.busy().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.send_replace(Some(StopLevel::Kill));
    };
    let (record, ()) = tokio::join!(bench.run(), killing);
    assert_eq!((record.end, record.ideas), (IdeasEnd::Stopped, None));
    assert_eq!(bench.rig.provider.existing(), Vec::<String>::new());
}

#[tokio::test]
async fn ideas_with_failed_call_end_in_error_or_are_written() {
    let script = "echo x > /ideas/a.md; echo 1 > $ROLLOUT_COST_FILE; echo y > /logs/y";
    let calls = {
        let mut bench = IdeasFixture::new(script).await;
        bench.run().await;
        bench.rig.provider.calls()
    };
    for (at, call) in calls.iter().enumerate() {
        for effect in [FaultEffect::Fail(FailureKind::Service), FaultEffect::Panic] {
            let mut bench = IdeasFixture::new(script).await;
            bench.rig.max_park = Duration::ZERO;
            bench.rig.provider.fault(FaultTrigger::Any(at), effect);
            let record = bench.run().await;
            let what = format!("call {at}, {call:?}: {effect:?}: {record:?}");
            match record.end {
                // Cost and logs are not ideas; removals are retried.
                IdeasEnd::Written => {
                    assert!(matches!(call, FakeCall::CopyFrom | FakeCall::Destroy), "{what}");
                }
                _ => assert!(record.error.is_some() && record.ideas.is_none(), "{what}"),
            }
        }
    }
}

#[tokio::test]
async fn ideas_command_lost_in_an_outage_starts_over_with_new_permit() {
    let mut bench = IdeasFixture::new("echo x > /ideas/a.md").await;
    bench.rig.max_park = Duration::from_secs(900);
    let permits = Arc::new(PermitRecorder::default());
    bench.permits = permits.clone();
    let effect = FaultEffect::Fail(FailureKind::Unreachable);
    bench.rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, 0), effect);
    let record = bench.run().await;
    assert_eq!((record.end, record.error), (IdeasEnd::Written, None));
    let stage = EvalStage::Ideas;
    let once = [PermitEvent::Acquired(stage), PermitEvent::Released(stage)];
    assert_eq!(permits.events(), [&once[..], &[PermitEvent::StartedOver], &once].concat());
}

#[tokio::test]
async fn ideas_failed_with_full_disk_are_retryable() {
    for (rest, end) in [("exit 3", IdeasEnd::Failed), ("echo x > /ideas/a.md", IdeasEnd::Written)] {
        let mut bench = IdeasFixture::new(&format!("echo much; {rest}")).await;
        let scratch = bench.dir.path().join("scratch-1");
        std::fs::create_dir_all(&scratch).expect("made");
        std::os::unix::fs::symlink("/dev/full", scratch.join("stdout.txt")).expect("linked");
        let record = bench.run().await;
        assert_eq!(record.end, end, "{record:?}");
        let error = record.error.as_ref();
        match end {
            IdeasEnd::Written => assert_eq!(error, None),
            _ => {
                let error = error.expect("an error");
                assert_eq!((&error.code, error.is_retryable()), (&ErrorCode::DISK_FULL, true));
                assert_eq!(error.class, ErrorClass::Infrastructure);
                let said = "a disk of this host was full while the command ran: ideas: the command";
                assert!(error.message.starts_with(said), "{}", error.message);
                assert_eq!(record.secondary_errors[0].class, ErrorClass::Agent);
            }
        }
    }
}
