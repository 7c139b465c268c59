//! The disk that a fetch uses while it runs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rollout_worker::disk::DiskSpace;

/// Bytes that a file counts at least: its entry and its first block.
pub(super) const ENTRY_BYTES: u64 = 4096;

/// Shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(500);

/// The time between two looks, in those of a look: most of the time is git's.
const PAUSE_FACTOR: u32 = 10;

/// Why a fetch ends before git does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    /// It brings more than its bound.
    Bytes,
    /// Too little space of the file system is left for other work.
    FullDisk,
}

/// Waits until a directory has more than these bytes, or its file system is almost full.
pub(super) async fn exceeds(directory: &Path, max_bytes: u64) -> Excess {
    loop {
        let began = Instant::now();
        if let Some(excess) = excess(size(directory), max_bytes, DiskSpace::for_path(directory)) {
            return excess;
        }
        tokio::time::sleep(PAUSE.max(began.elapsed() * PAUSE_FACTOR)).await;
    }
}

fn excess(bytes: u64, max_bytes: u64, space: Option<DiskSpace>) -> Option<Excess> {
    if bytes > max_bytes {
        return Some(Excess::Bytes);
    }
    space.is_some_and(|space| space.is_low()).then_some(Excess::FullDisk)
}

/// The bytes of all files below a directory. Links are not followed, and a file that is gone does not
/// count: git removes temporary ones.
pub(super) fn size(directory: &Path) -> u64 {
    let mut bytes = 0_u64;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let below = if metadata.is_dir() { size(&entry.path()) } else { 0 };
        bytes = bytes.saturating_add(metadata.len().max(ENTRY_BYTES)).saturating_add(below);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn directory_that_grows_beyond_its_bound_is_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_owned();
        fs::create_dir(path.join("below")).expect("created");
        fs::write(path.join("below/first"), vec![0; 100_000]).expect("written");
        std::os::unix::fs::symlink("/", path.join("below/link")).expect("a link");
        let bytes = size(&path);
        assert!((100_000..200_000).contains(&bytes), "{bytes}");

        let max_bytes = 1_000_000;
        let mut exceeding = Box::pin(exceeds(&path, max_bytes));
        let first = tokio::time::timeout(Duration::from_millis(1), &mut exceeding).await;
        assert!(first.is_err(), "it is small");
        fs::write(path.join("below/second"), vec![0; 1_000_000]).expect("written");
        let noticed = tokio::time::timeout(Duration::from_secs(60), exceeding).await;
        assert_eq!(noticed, Ok(Excess::Bytes));
    }

    #[test]
    fn fetch_ends_when_the_disk_is_almost_full() {
        let size = 1 << 40;
        let space = |free| Some(DiskSpace { size, free, files: 0, free_files: 0 });
        assert_eq!(excess(1, 1, space(size / 2)), None);
        assert_eq!(excess(2, 1, space(size / 2)), Some(Excess::Bytes));
        assert_eq!(excess(1, 1, space(1 << 20)), Some(Excess::FullDisk));
        assert_eq!(excess(1, 1, None), None);
    }
}
