//! Programs whose syncs of some files have no effect: tests of power cuts must notice it.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::project::Project;

/// A library that is loaded before the C library and replaces its `fsync` and `fdatasync`. Calls of the
/// system without the C library, such as `syncfs` by rustix, keep their effect.
#[derive(Debug)]
pub struct UnsyncedFiles {
    library: PathBuf,
    _directory: TempDir,
}

impl UnsyncedFiles {
    /// Compiles the library.
    ///
    /// # Errors
    /// The reason, without a C compiler.
    ///
    /// # Panics
    /// When it cannot be compiled.
    pub fn compile() -> Result<Self, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let library = directory.path().join("unsynced.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("harness/power_disk/unsynced.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
        let compiled = compiler.output().map_err(|error| format!("needs a C compiler: {error}"))?;
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Ok(Self { library, _directory: directory })
    }

    /// Lets the commands of a project that are started from now on sync no file whose path contains
    /// `part`.
    ///
    /// # Panics
    /// When the path of the library is not plain.
    pub fn apply(&self, project: &Project, part: &str) {
        project.set_variable("LD_PRELOAD", self.library.to_str().expect("a plain path"));
        project.set_variable("ROLLOUT_TEST_UNSYNCED", part);
    }
}
