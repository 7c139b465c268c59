//! Outputs of evals as files, compared with the blobs that their records name. A power failure may
//! have emptied files that a version of the program did not sync.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::shown_path::shown;
use rollout_base::{durable, fs_remove, regular_file, supervise};
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::limits;
use rollout_protocol::record::EvalRecord;
use rollout_protocol::search::EvalId;
use rollout_store::BlobStore;
use rollout_store::archive::ArchivePath;

use super::results::{self, ResultsError, archives};
use crate::workloads::search::driver::SearchDirectory;
use crate::workloads::search::manifest::{EvalStatus, SearchManifest};

/// The treatment of an output that differs from its blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputRepair {
    /// It stays as it is. An archive that is missing as a whole may have been removed on purpose, and is
    /// not fetched.
    None,
    /// It is replaced by the content of its blob.
    Replace,
}

/// The result of comparing outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparedOutputs {
    /// Number of the outputs that were compared with their blobs: files and unpacked archives.
    pub compared: usize,
    /// Those that differ: the eval, and the path below the search's directory.
    pub differing: Vec<(EvalId, String)>,
    /// Unpacked archives that are missing as a whole and stay so.
    pub absent: Vec<(EvalId, String)>,
}

/// The blob of an output.
#[derive(Debug, Clone, Copy)]
enum OutputBlob<'a> {
    File(&'a BlobRef),
    /// An archive and a description of it.
    Archive(&'static str, &'a BlobRef),
}

/// The result of comparing one output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputState {
    Equal,
    Differing,
    /// It is missing, and was not compared.
    Absent,
    /// Its blob is not available.
    Unavailable,
}

/// Compares the outputs of all ended evals with their blobs. Files are compared by their digests; archives
/// are fetched. Outputs that differ and whose blobs are not available are left out.
///
/// # Errors
/// [`ResultsError`]: the store gives no answer, or the local disk fails.
pub async fn compare_outputs(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    store: &dyn BlobStore,
    repair: OutputRepair,
) -> Result<ComparedOutputs, ResultsError> {
    let mut compared = ComparedOutputs::default();
    let scratch = scratch_directory(directory, repair)?;
    for (eval, attempt) in attempts(manifest) {
        let path = directory.resolve_below(&format!("{attempt}/record.json"));
        let Some(record) = path.and_then(|path| read_record(&path)) else { continue };
        for (name, blob) in output_blobs(&record) {
            let path = format!("{attempt}/{}", name.display());
            let Some(place) = directory.resolve_below(&path) else { continue };
            let wanted = scratch.path().join("output");
            match check_output(store, blob, &place, &wanted, repair).await? {
                OutputState::Equal => compared.compared += 1,
                OutputState::Differing => {
                    compared.compared += 1;
                    compared.differing.push((eval, path));
                }
                OutputState::Absent => compared.absent.push((eval, path)),
                OutputState::Unavailable => {}
            }
        }
    }
    Ok(compared)
}

/// A directory for blobs. It is on the file system of the search if they replace outputs.
fn scratch_directory(
    directory: &SearchDirectory,
    repair: OutputRepair,
) -> Result<tempfile::TempDir, ResultsError> {
    let root = directory.root();
    let made = match repair {
        OutputRepair::None => tempfile::tempdir(),
        OutputRepair::Replace => directory.create_scratch(),
    };
    made.map_err(ResultsError::disk("create a temporary directory for", root))
}

/// The directories of the attempts of ended evals whose outputs are kept.
fn attempts(manifest: &SearchManifest) -> impl Iterator<Item = (EvalId, String)> {
    let keeps_failed = manifest.run_config.keep_failed_artifacts;
    let ended = manifest.evaluations.iter().filter(move |(_, eval)| {
        eval.status.is_settled() && (keeps_failed || eval.status != EvalStatus::Failed)
    });
    ended.flat_map(|(id, eval)| {
        let experiment = eval.experiment_dir.iter();
        experiment.flat_map(move |dir| {
            (1..=eval.attempt).map(move |attempt| (*id, format!("{dir}/attempt-{attempt}")))
        })
    })
}

/// A record that cannot be read is a fault that validation reports.
fn read_record(path: &Path) -> Option<EvalRecord> {
    let text = regular_file::read(path, limits::DOCUMENT_BYTES).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The blobs of a record, with the paths of their outputs below the directory of the attempt.
fn output_blobs(record: &EvalRecord) -> Vec<(PathBuf, OutputBlob<'_>)> {
    let files = record.outputs.iter().filter_map(|output| {
        let path = ArchivePath::clean(output.path.as_bytes()).ok()??;
        Some((path.as_path().to_owned(), OutputBlob::File(&output.blob)))
    });
    let unpacked = archives(record)
        .map(|(what, name, blob)| (PathBuf::from(name), OutputBlob::Archive(what, blob)));
    files.chain(unpacked).collect()
}

/// Compares the output at `place` with its blob, which is fetched to `wanted` if that is needed.
async fn check_output(
    store: &dyn BlobStore,
    blob: OutputBlob<'_>,
    place: &Path,
    wanted: &Path,
    repair: OutputRepair,
) -> Result<OutputState, ResultsError> {
    let disk = || ResultsError::disk("compare", place);
    let unfetched = match blob {
        OutputBlob::File(blob) => {
            let (found, size, digest) = (place.to_owned(), blob.size_bytes, blob.digest);
            let work = move || has_digest(&found, size, digest);
            if supervise::blocking(work).await.map_err(disk())? {
                return Ok(OutputState::Equal);
            }
            Some((blob, OutputState::Differing))
        }
        OutputBlob::Archive(_, blob) => {
            let is_absent = place.symlink_metadata().is_err();
            is_absent.then_some((blob, OutputState::Absent))
        }
    };
    if let Some((blob, state)) = unfetched.filter(|_| repair == OutputRepair::None) {
        let is_available = has_blob(store, blob, place).await?;
        return Ok(if is_available { state } else { OutputState::Unavailable });
    }
    if !fetch(store, blob, wanted).await? {
        return Ok(OutputState::Unavailable);
    }
    let (wanted, found) = (wanted.to_owned(), place.to_owned());
    let is_equal = supervise::blocking(move || compare(&wanted, &found, repair)).await;
    Ok(match is_equal.map_err(disk())? {
        true => OutputState::Equal,
        false => OutputState::Differing,
    })
}

/// Whether the blob of an output is there.
async fn has_blob(
    store: &dyn BlobStore,
    blob: &BlobRef,
    place: &Path,
) -> Result<bool, ResultsError> {
    match store.contains(&blob.digest).await {
        Ok(is_there) => Ok(is_there),
        Err(source) => {
            let error = ResultsError::Store { what: shown(place).to_string(), source };
            results::best_effort(Err(error)).map(|()| false)
        }
    }
}

/// Whether a file has these bytes. Blocks.
fn has_digest(file: &Path, size: u64, digest: Digest) -> io::Result<bool> {
    match file.symlink_metadata() {
        Ok(found) if found.is_file() && found.len() == size => {
            Ok(regular_file::digest(file)? == digest)
        }
        _ => Ok(false),
    }
}

/// Fetches the content of an output to `to`. False if its blob is not available.
async fn fetch(
    store: &dyn BlobStore,
    blob: OutputBlob<'_>,
    to: &Path,
) -> Result<bool, ResultsError> {
    fs_remove::remove(to).await.map_err(ResultsError::disk("remove", to))?;
    let fetched = match blob {
        OutputBlob::File(blob) => results::fetch(store, blob, to).await,
        OutputBlob::Archive(what, blob) => results::unpack(store, what, blob, to).await,
    };
    results::best_effort(fetched)?;
    Ok(to.exists())
}

/// Whether an output has the wanted content; if not, it may be replaced by it.
fn compare(wanted: &Path, place: &Path, repair: OutputRepair) -> io::Result<bool> {
    if has_content(wanted, place)? {
        return Ok(true);
    }
    if repair == OutputRepair::Replace {
        fs_remove::remove_blocking(place)?;
        let parent = place.parent().unwrap_or(place);
        durable::create_directory(parent)?;
        match wanted.is_dir() {
            true => durable::sync_tree(wanted)?,
            false => durable::sync_file(wanted)?,
        }
        fs::rename(wanted, place)?;
        durable::sync_directory(parent)?;
    }
    Ok(false)
}

/// Whether `found` has all files of `wanted` with equal content. It may have more.
fn has_content(wanted: &Path, found: &Path) -> io::Result<bool> {
    if !wanted.is_dir() {
        return has_bytes(wanted, found);
    }
    for entry in fs::read_dir(wanted)? {
        let entry = entry?;
        if !has_content(&entry.path(), &found.join(entry.file_name()))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_bytes(wanted: &Path, found: &Path) -> io::Result<bool> {
    let is_same_size = |found: &fs::Metadata| {
        found.is_file() && fs::metadata(wanted).is_ok_and(|wanted| wanted.len() == found.len())
    };
    if !found.symlink_metadata().is_ok_and(|found| is_same_size(&found)) {
        return Ok(false);
    }
    let [mut wanted, mut found] = [fs::File::open(wanted)?, fs::File::open(found)?];
    let mut buffers = [vec![0; 64 * 1024], vec![0; 64 * 1024]];
    loop {
        let [one, other] = &mut buffers;
        let read = io::Read::read(&mut wanted, one)?;
        if read == 0 {
            return Ok(true);
        }
        io::Read::read_exact(&mut found, &mut other[..read])?;
        if one[..read] != other[..read] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rollout_protocol::blob::MediaType;
    use rollout_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn sound_file_and_absent_archive_are_not_fetched() {
        let temp = tempfile::tempdir().expect("a directory");
        let [place, wanted] = ["place", "wanted"].map(|name| temp.path().join(name));
        let store = MemoryStore::default();
        let text = Bytes::from_static(b"text");
        let blob = BlobRef {
            digest: Digest::sha256(&text),
            size_bytes: 4,
            media_type: Some(MediaType::Text),
        };
        let file = OutputBlob::File(&blob);
        fs::write(&place, &text).expect("written");
        for repair in [OutputRepair::None, OutputRepair::Replace] {
            let state = check_output(&store, file, &place, &wanted, repair).await;
            assert_eq!(state.expect("compared"), OutputState::Equal, "the store lacks the blob");
        }
        fs::write(&place, "").expect("emptied");
        for repair in [OutputRepair::None, OutputRepair::Replace] {
            let state = check_output(&store, file, &place, &wanted, repair).await;
            assert_eq!(state.expect("compared"), OutputState::Unavailable);
        }
        store.put_bytes(text, MediaType::Text).await.expect("stored");
        for (repair, left) in [(OutputRepair::None, ""), (OutputRepair::Replace, "text")] {
            let state = check_output(&store, file, &place, &wanted, repair).await;
            assert_eq!(state.expect("compared"), OutputState::Differing);
            assert_eq!(fs::read_to_string(&place).expect("a file"), left);
        }
        let archive = OutputBlob::Archive("the logs", &blob);
        let missing = temp.path().join("missing");
        let state = check_output(&store, archive, &missing, &wanted, OutputRepair::None).await;
        assert_eq!(state.expect("not fetched"), OutputState::Absent, "the blob is no archive");
    }

    #[test]
    fn emptied_output_is_replaced_and_more_files_are_no_difference() {
        let temp = tempfile::tempdir().expect("a directory");
        let [wanted, place] = ["wanted", "place"].map(|name| temp.path().join(name));
        let make = || {
            fs::create_dir_all(wanted.join("sub")).expect("made");
            fs::write(wanted.join("sub/file"), "text").expect("written");
        };
        make();
        assert!(!compare(&wanted, &place, OutputRepair::None).expect("compared"), "it is missing");
        assert!(!place.exists());
        assert!(!compare(&wanted, &place, OutputRepair::Replace).expect("compared"));
        fs::write(place.join("more"), "more").expect("written");
        make();
        assert!(compare(&wanted, &place, OutputRepair::None).expect("compared"));
        for lost in ["", "tex", "texT"] {
            fs::write(place.join("sub/file"), lost).expect("written");
            assert!(!compare(&wanted, &place, OutputRepair::Replace).expect("compared"), "{lost}");
            assert_eq!(fs::read_to_string(place.join("sub/file")).expect("a file"), "text");
            make();
        }
        let [wanted, place] = ["one", "other"].map(|name| temp.path().join(name));
        fs::write(&wanted, "x").expect("written");
        assert!(!compare(&wanted, &place, OutputRepair::Replace).expect("compared"));
        assert_eq!(fs::read_to_string(place).expect("a file"), "x");
    }
}
