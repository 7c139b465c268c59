//! Directories that become read-only under programs that use them.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rollout_tests::read_only_mount::ReadOnlyMount;

/// Ends the loop that looks at it, also when the test panics.
struct EndOfLoop<'a>(&'a AtomicBool);

impl Drop for EndOfLoop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn directory_becomes_read_only_while_a_program_opens_files_in_it() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = root.path().join("used");
    fs::create_dir(&directory).expect("made");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                open.extend(File::create(directory.join("file")));
                if open.len() > 16 {
                    open.pop_front();
                }
            }
        });
        let _end = EndOfLoop(&is_over);
        let Some(mount) = ReadOnlyMount::over(&directory) else { return };
        let refused = File::create(directory.join("other")).expect_err("it is read-only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        drop(mount);
        File::create(directory.join("other")).expect("it takes writes");
    });
}
