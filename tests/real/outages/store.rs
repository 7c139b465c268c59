//! A blob store that is temporarily missing: its directory, or its service.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_tests::project::Project;
use rollout_tests::s3_server::S3Server;
use rollout_tests::tcp_proxy::TcpProxy;

use crate::{DEADLINE, OutageJob, assert_unharmed, project, wait_out_outage, wait_until_settled};

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
