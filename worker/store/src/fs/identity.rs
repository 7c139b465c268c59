//! `store.json`: the file that identifies a directory as a store.

use std::io::{self, Read as _};
use std::path::Path;

use super::super::identity::{IDENTITY_FILE, MAX_IDENTITY_BYTES, StoreIdentity};
use super::scratch::StoreScratch;
use super::{StoreError, make_directory, sync_directory};

use rollout_base::durable;
use rollout_base::shown_path::shown;

/// Reads the identity of the store at `root`, creating the store if there is none.
pub(super) fn open(root: &Path, scratch: &StoreScratch) -> Result<String, StoreError> {
    let file = root.join(IDENTITY_FILE);
    if let Some(identity) = read(&file)? {
        return Ok(identity.id);
    }
    durable::create_directory(root).map_err(|error| StoreError::io("create", root, error))?;
    for name in ["tmp", "docs", "blobs"] {
        make_directory(&root.join(name))?;
    }
    let identity = StoreIdentity::random();
    let mut temp = scratch.create()?;
    temp.write(&identity.to_bytes())?;
    temp.sync()?;
    let created = temp.link_new(&file)?;
    sync_directory(root)?;
    if created {
        return Ok(identity.id);
    }
    let other = read(&file)?.ok_or_else(|| StoreError::Unusable {
        path: shown(root).to_string(),
        reason: "its store.json disappeared while it was opened".into(),
    })?;
    Ok(other.id)
}

fn read(file: &Path) -> Result<Option<StoreIdentity>, StoreError> {
    let opened = match std::fs::File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("open", file, error)),
    };
    let mut text = Vec::new();
    opened
        .take(MAX_IDENTITY_BYTES)
        .read_to_end(&mut text)
        .map_err(|error| StoreError::io("read", file, error))?;
    StoreIdentity::parse(&text, &shown(file).to_string()).map(Some)
}
