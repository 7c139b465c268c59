//! A blob store that is temporarily missing: its directory, or its service.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::exit::ExitCode;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::s3_process::S3Process;
use rollout_tests::s3_server::S3Server;
use rollout_tests::tcp_proxy::TcpProxy;
use rustix::process::Signal;

use crate::outages::{
    DEADLINE, OutageJob, assert_unharmed, project, wait_out_outage, wait_until_settled,
};

/// The blob store's directory, which can be hidden and restored.
#[derive(Debug)]
pub(crate) struct BlobDirectory {
    directory: PathBuf,
    hidden: PathBuf,
}

impl BlobDirectory {
    pub(crate) fn in_project(project: &Project, directory: &str) -> Self {
        let directory = project.path().join(directory);
        let hidden = directory.with_extension("aside");
        Self { directory, hidden }
    }

    /// Leaves an empty directory, as an unmounted file system does.
    pub(crate) fn hide(&self) {
        fs::rename(&self.directory, &self.hidden).expect("renamed");
        fs::create_dir(&self.directory).expect("an empty directory");
    }

    pub(crate) fn restore(&self) {
        fs::remove_dir(&self.directory).expect("nothing was created while the store was missing");
        fs::rename(&self.hidden, &self.directory).expect("renamed");
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }
}

#[test]
fn store_outage_costs_no_trial() {
    let project = project();
    let job = OutageJob { provider: "process", ..OutageJob::docker() };
    job.write(&project);
    let mut run = project.rollout(&["run", "job.yaml", "--json"]);
    wait_until_settled(&run, 2);
    let blobs = BlobDirectory::in_project(&project, "jobs/.rollout/blobs");
    blobs.hide();
    wait_out_outage(&mut run);
    blobs.restore();
    let ended = run.wait(DEADLINE);
    let _ended = assert_unharmed(ended, &project.results("outage"), job.trials);
    assert!(blobs.path().join("store.json").exists());
}

#[test]
fn s3_outage_costs_no_trial() {
    let (project, server) = (project(), S3Server::start());
    let proxy = TcpProxy::for_port(server.port());
    let job = OutageJob { provider: "process", ..OutageJob::docker() };
    job.write(&project);
    let url = server.store_url_at(proxy.port(), "runs");
    let mut command = project.command(&["run", "job.yaml", "--json", "--store", &url]);
    command.envs(S3Server::environment());
    let mut run = project.start(command);
    wait_until_settled(&run, 2);
    proxy.cut();
    wait_out_outage(&mut run);
    proxy.restore();
    let ended = run.wait(DEADLINE);
    let _ended = assert_unharmed(ended, &project.results("outage"), job.trials);
}

/// A run on a server program that `begin` stops for the length of an outage, and `end` continues.
fn run_through_server_outage(
    begin: impl Fn(&mut S3Process),
    end: impl Fn(&mut S3Process),
) -> (Project, S3Process) {
    let project = project();
    let program = Path::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let mut server = S3Process::start(program, &project.path().join("s3"));
    let job = OutageJob { provider: "process", ..OutageJob::docker() };
    job.write(&project);
    let url = server.store_url("runs");
    let mut command = project.command(&["run", "job.yaml", "--json", "--store", &url]);
    command.envs(S3Server::environment());
    let mut run = project.start(command);
    wait_until_settled(&run, 2);
    begin(&mut server);
    wait_out_outage(&mut run);
    end(&mut server);
    let ended = run.wait(DEADLINE);
    let _ended = assert_unharmed(ended, &project.results("outage"), job.trials);
    (project, server)
}

/// Runs a command with the key of the server.
fn with_key(project: &Project, arguments: &[&str]) -> ProgramExit {
    let mut command = project.command(arguments);
    command.envs(S3Server::environment());
    project.start(command).wait(DEADLINE)
}

/// Digests and files of the two largest blobs on a server.
fn largest_blobs(server: &S3Process) -> [(String, PathBuf); 2] {
    let mut found = Vec::new();
    for directory in fs::read_dir(server.bucket().join("runs/blobs")).expect("blobs") {
        let directory = directory.expect("an entry").path();
        for file in fs::read_dir(&directory).expect("blobs") {
            let file = file.expect("an entry");
            let [start, rest] = [directory.file_name().expect("a name"), &file.file_name()]
                .map(|name| name.to_string_lossy().into_owned());
            let size = file.metadata().expect("stored").len();
            found.push((size, format!("sha256:{start}{rest}"), file.path()));
        }
    }
    found.sort_unstable();
    std::array::from_fn(|_| found.pop().map(|(_, digest, path)| (digest, path)).expect("two blobs"))
}

#[test]
fn s3_server_killed_costs_no_trial_and_later_damage_is_named() {
    let (project, server) = run_through_server_outage(S3Process::kill, S3Process::ensure_started);
    let verify = ["blob", "verify", "--run", "jobs/outage"];
    let _whole = with_key(&project, &verify).expect_code(ExitCode::Success);

    let [flipped, truncated] = largest_blobs(&server);
    let mut bytes = fs::read(&flipped.1).expect("stored");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&flipped.1, &bytes).expect("written");
    let file = fs::File::options().write(true).open(&truncated.1).expect("stored");
    file.set_len(fs::metadata(&truncated.1).expect("stored").len() / 2).expect("shortened");

    let url = server.store_url("runs");
    let damaged = [&flipped.0, &truncated.0];
    for digest in damaged {
        let read = with_key(&project, &["blob", "get", digest, "--store", &url]);
        let _named = read.expect_code(ExitCode::RunDamaged).expect_stderr(digest);
    }
    let verified = with_key(&project, &["blob", "verify", "--json", "--store", &url]);
    let verified = verified.expect_code(ExitCode::RunDamaged);
    for digest in damaged {
        assert!(verified.stdout.contains(digest.as_str()), "{digest}: {}", verified.stdout);
    }
}

#[test]
fn s3_server_paused_costs_no_trial() {
    let (project, _server) = run_through_server_outage(
        |server| server.signal(Signal::STOP),
        |server| server.signal(Signal::CONT),
    );
    let verify = ["blob", "verify", "--run", "jobs/outage"];
    let _whole = with_key(&project, &verify).expect_code(ExitCode::Success);
}
