//! `store.json`: the file that identifies a directory as a store.

use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::scratch::StoreScratch;
use super::{StoreError, make_directory, sync_directory};

/// Name of the identity file.
pub(super) const IDENTITY_FILE: &str = "store.json";

/// The layout version that this program reads and writes.
const FORMAT: u32 = 1;

/// Larger than any version writes.
const MAX_BYTES: u64 = 64 * 1024;

#[derive(Debug, Serialize, Deserialize)]
struct StoreIdentity {
    format: u32,
    id: String,
}

/// Reads the identity of the store at `root`, creating the store if there is none.
pub(super) fn open(root: &Path, scratch: &StoreScratch) -> Result<String, StoreError> {
    let file = root.join(IDENTITY_FILE);
    if let Some(id) = read(&file)? {
        return Ok(id);
    }
    make_root(root)?;
    for name in ["tmp", "docs", "blobs"] {
        make_directory(&root.join(name))?;
    }
    let identity = StoreIdentity { format: FORMAT, id: format!("{:032x}", rand::random::<u128>()) };
    let text = serde_json::to_vec(&identity)
        .map_err(|source| StoreError::Json { what: "the identity of a store".into(), source })?;
    let mut temp = scratch.create()?;
    temp.write(&text)?;
    temp.sync()?;
    let created = temp.link_new(&file)?;
    sync_directory(root)?;
    if created {
        return Ok(identity.id);
    }
    read(&file)?.ok_or_else(|| StoreError::Unusable {
        path: root.display().to_string(),
        reason: "its store.json disappeared while it was opened".into(),
    })
}

/// Creates the directory of the store and its parents, durably.
fn make_root(root: &Path) -> Result<(), StoreError> {
    let missing: Vec<_> = root.ancestors().take_while(|path| !path.exists()).collect();
    std::fs::create_dir_all(root).map_err(|error| StoreError::io("create", root, error))?;
    for parent in missing.iter().filter_map(|path| path.parent()) {
        sync_directory(if parent == Path::new("") { Path::new(".") } else { parent })?;
    }
    Ok(())
}

fn read(file: &Path) -> Result<Option<String>, StoreError> {
    let opened = match std::fs::File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("open", file, error)),
    };
    let mut text = Vec::new();
    opened
        .take(MAX_BYTES)
        .read_to_end(&mut text)
        .map_err(|error| StoreError::io("read", file, error))?;
    let unusable =
        |reason: String| StoreError::Unusable { path: file.display().to_string(), reason };
    let identity: StoreIdentity =
        serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
    if identity.format != FORMAT {
        let found = identity.format;
        return Err(unusable(format!("it has format {found}, this version supports {FORMAT}")));
    }
    Ok(Some(identity.id))
}
