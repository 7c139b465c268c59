//! Time that the disk alone takes for the same bytes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Appends `items` records of `bytes` each in batches of `window`, one sync per batch: the group
/// commit of a journal that does nothing else.
pub(super) fn group_commit(
    directory: &Path,
    items: u64,
    window: u64,
    bytes: usize,
) -> io::Result<Duration> {
    let path = directory.join("floor.log");
    let mut file = File::create(&path)?;
    let batch = vec![b'x'; bytes * usize::try_from(window).unwrap_or(usize::MAX)];
    let start = Instant::now();
    let mut left = items;
    while left > 0 {
        let now = left.min(window);
        file.write_all(&batch[..bytes * usize::try_from(now).unwrap_or(usize::MAX)])?;
        file.sync_data()?;
        left -= now;
    }
    let took = start.elapsed();
    fs::remove_file(path)?;
    Ok(took)
}

/// Writes the files of one result tree as often as the run did: for each trial a directory with
/// these files, each synced, and the directory synced.
pub(super) fn result_tree(
    directory: &Path,
    items: u64,
    files: &[(String, usize)],
) -> io::Result<Duration> {
    let root = directory.join("floor-tree");
    fs::create_dir_all(&root)?;
    let start = Instant::now();
    for item in 0..items {
        let trial = root.join(item.to_string());
        fs::create_dir(&trial)?;
        for (name, bytes) in files {
            let path = trial.join(name);
            let parent = path.parent().unwrap_or(&trial);
            fs::create_dir_all(parent)?;
            let mut file = File::create(&path)?;
            file.write_all(&vec![b'x'; *bytes])?;
            file.sync_all()?;
        }
        File::open(&trial)?.sync_all()?;
    }
    let took = start.elapsed();
    fs::remove_dir_all(root)?;
    Ok(took)
}
