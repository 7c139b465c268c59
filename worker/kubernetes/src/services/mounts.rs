//! Mounts of a service: volumes that services share, volumes of one service, and memory.

use rollout_environment::compose::HostPath;
use serde_json::Value;

use super::model::{MountVolume, ServiceMount};
use super::table::{Table, scalar};
use super::units;

/// Why a mount of a file is not possible.
const NO_BIND: &str = "a file or directory of the task cannot be mounted into a pod: copy it into \
                       an image";

/// Reads `volumes`, `tmpfs` and `shm_size` of a service.
pub(super) fn read(service: &mut Table<'_>) -> Vec<ServiceMount> {
    let mut mounts = Vec::new();
    if let Some((at, value)) = service.take("volumes") {
        match value {
            Value::Array(items) => {
                mounts.extend(items.into_iter().filter_map(|item| volume(service, &at, item)));
            }
            _ => service.problems.invalid(&at, "it is not a list"),
        }
    }
    let at = service.at("tmpfs");
    for text in service.texts("tmpfs") {
        let (target, options) = text.split_once(':').unwrap_or((&text, ""));
        let mut size = None;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("size", amount)) => size = units::bytes(&amount.into()),
                // Every user may write there.
                Some(("mode", "1777" | "777")) | None => {}
                Some(_) => service.problems.unsupported(&at, "an option other than `size`"),
            }
        }
        let target = target.to_owned();
        mounts.push(ServiceMount {
            volume: MountVolume::Memory(size),
            target,
            is_read_only: false,
        });
    }
    if let Some(size) = service.parsed("shm_size", units::bytes, "a size such as `64m`") {
        let (volume, target) = (MountVolume::Memory(Some(size)), "/dev/shm".to_owned());
        mounts.push(ServiceMount { volume, target, is_read_only: false });
    }
    let at = service.at("volumes");
    for mount in &mounts {
        if !is_target(&mount.target) {
            let why = format!(
                "`{}` is not an absolute path below the root of the container",
                mount.target
            );
            service.problems.unsupported(&at, &why);
        }
    }
    mounts
}

fn is_target(target: &str) -> bool {
    let parts = target.trim_matches('/').split('/');
    target.starts_with('/')
        && !target.contains(':')
        && parts.clone().all(|part| !matches!(part, "" | "." | ".."))
}

/// Reads one item of `volumes`.
fn volume(service: &Table<'_>, at: &str, item: Value) -> Option<ServiceMount> {
    if item.is_object() {
        return long_form(Table::new(at.to_owned(), item, service.problems), at);
    }
    let text = scalar(&item)?;
    let mut parts = text.split(':');
    let (first, second, options) = (parts.next()?, parts.next(), parts.next().unwrap_or_default());
    let Some(target) = second else {
        let target = first.to_owned();
        return Some(ServiceMount { volume: MountVolume::Own, target, is_read_only: false });
    };
    let is_read_only = options.split(',').any(|option| option == "ro");
    let volume = source(service, at, first)?;
    Some(ServiceMount { volume, target: target.to_owned(), is_read_only })
}

/// The volume of a source: a name, or one of the directories that stand for those of the host.
fn source(service: &Table<'_>, at: &str, source: &str) -> Option<MountVolume> {
    if !source.starts_with(['/', '.', '~']) {
        return Some(MountVolume::Shared(source.to_owned()));
    }
    match HostPath::for_source(source) {
        Ok(Some(path)) => Some(MountVolume::Shared(path.volume.to_owned())),
        Ok(None) => {
            service.problems.unsupported(at, &format!("`{source}`: {NO_BIND}"));
            None
        }
        Err(why) => {
            service.problems.unsupported(at, &why);
            None
        }
    }
}

fn long_form(mut table: Table<'_>, at: &str) -> Option<ServiceMount> {
    let kind = table.text("type").unwrap_or_else(|| "volume".to_owned());
    let (from, target) = (table.text("source"), table.text("target"));
    let is_read_only = table.flag("read_only");
    let options = table.table("tmpfs");
    // No host has other propagation, and an empty volume has nothing to copy.
    table.ignore(&["bind", "volume", "consistency"]);
    let volume = match (kind.as_str(), from) {
        ("volume", None) => Some(MountVolume::Own),
        ("volume" | "bind", Some(from)) => source(&table, at, &from),
        ("tmpfs", _) => {
            let size = options.and_then(|mut options| {
                let size = options.parsed("size", units::bytes, "a size such as `64m`");
                options.ignore(&["mode"]);
                options.finish(|_| "is not supported");
                size
            });
            Some(MountVolume::Memory(size))
        }
        _ => {
            table.problems.unsupported(at, &format!("mounts of type `{kind}` are not supported"));
            None
        }
    };
    if target.is_none() {
        table.problems.invalid(at, "a mount has no `target`");
    }
    table.finish(|_| "is not supported");
    Some(ServiceMount { volume: volume?, target: target?, is_read_only })
}
