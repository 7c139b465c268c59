//! A blob store whose directory is temporarily missing.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_tests::project::Project;

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
