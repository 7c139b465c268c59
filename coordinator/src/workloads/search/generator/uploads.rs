//! What the command is given, packed.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rollout_protocol::digest::Digest;
use rollout_protocol::limits;
use rollout_worker::archive::{self, ArchivePath, Keep, Limits, Packed};
use rollout_worker::environment::{ImageSource, Upload};
use rollout_worker::executor::cost;
use rollout_worker::supervise;

use super::variables::{COMMANDS, CONTEXT, IDEAS, LOGS, PACK, REPOSITORY, SCRIPT};
use super::{Generator, IdeasFault, tame};
use crate::workloads::search::driver::{IdeasOrder, usable};
use crate::workloads::search::idea::{IDEA_BYTES, IDEAS_OF_A_NODE};

/// Bounds of a checkout.
const CHECKOUT: Limits =
    Limits { entries: limits::CHECKOUT_ENTRIES, bytes: limits::CHECKOUT_BYTES };

/// Bounds of a directory of earlier ideas.
const EARLIER: Limits =
    Limits { entries: IDEAS_OF_A_NODE as u64, bytes: IDEAS_OF_A_NODE as u64 * IDEA_BYTES };

/// Bounds of what is known of a node: a few files of bounded size.
const KNOWN: Limits = Limits { entries: 100, bytes: 64 * 1024 * 1024 };

/// Where the directories of earlier ideas are in the environment.
pub(super) fn context_paths(order: &IdeasOrder) -> Vec<String> {
    let named = order.context.iter().enumerate();
    named.map(|(at, path)| format!("{CONTEXT}/{at:02}-{}", tame(path))).collect()
}

/// Everything that is in the environment before the command begins. The archives are in `work`.
pub(super) async fn all(
    generator: &Generator,
    order: &IdeasOrder,
    work: &Path,
) -> Result<Vec<Upload>, IdeasFault> {
    let Some(checkout) = &order.node.worktree_path else {
        return Err(IdeasFault::Defect("the node has no checkout any more".to_owned()));
    };
    let checkout = generator.run_dir().join(checkout);
    let mut uploads = vec![Upload::Dir { path: LOGS.to_owned() }];
    let mut add = async |name: String, dir: &Path, limits, path: &str, keep: Filter| {
        let tar = work.join(format!("{name}.tar"));
        packed(&name, dir, &tar, limits, keep).await?;
        uploads.push(Upload::Archive { path: path.to_owned(), tar });
        Ok::<_, IdeasFault>(())
    };
    add("checkout".to_owned(), &checkout, CHECKOUT, REPOSITORY, Box::new(in_checkout)).await?;
    for (at, (path, dir)) in context_paths(order).iter().zip(&order.context).enumerate() {
        // What the search counts as shown: users' directories may hold anything.
        let from = dir.clone();
        let shown: BTreeSet<String> =
            supervise::blocking(move || usable(&from).into_keys().collect()).await;
        let is_shown =
            move |_: &Path, path: &Path, _| path.to_str().is_some_and(|name| shown.contains(name));
        add(format!("context-{at}"), dir, EARLIER, path, Box::new(is_shown)).await?;
    }
    add("pack".to_owned(), &order.pack, KNOWN, PACK, Box::new(is_idea)).await?;
    let script = generator.tree.commands.ideas.run.clone();
    uploads.extend([
        Upload::FreshDir { path: IDEAS.to_owned() },
        cost::room(),
        Upload::FreshDir { path: COMMANDS.to_owned() },
        Upload::File { path: SCRIPT.to_owned(), bytes: script.into(), executable: true },
    ]);
    Ok(uploads)
}

/// Where the image comes from. Its files are in `work`.
pub(super) async fn source(generator: &Generator, work: &Path) -> Result<ImageSource, IdeasFault> {
    let place = &generator.tree.commands.ideas.place;
    if let Some(image) = &place.docker_image {
        return Ok(ImageSource::Named(image.clone()));
    }
    let dir = work.join("context");
    let Some(context) = &place.context else {
        let made = tokio::fs::create_dir(&dir).await;
        made.map_err(IdeasFault::disk("create", &dir))?;
        return Ok(ImageSource::Context { digest: Digest::of(b""), dir });
    };
    let (what, tar) = ("the build context", work.join("context.tar"));
    let from = generator.tree.beside(context);
    // Packed as evals have theirs packed: equal contexts are one image.
    let all = Box::new(|_: &Path, _: &Path, _| true);
    let Packed { digest, .. } = packed(what, &from, &tar, Limits::BUNDLE, all).await?;
    let file = tokio::fs::File::open(&tar).await.map_err(IdeasFault::disk("open", &tar))?;
    let unpacked = archive::extract_trusted(file, &dir, Limits::BUNDLE).await;
    let failed = |source| IdeasFault::Archive { what: format!("unpacking {what}"), source };
    unpacked.map_err(failed)?;
    Ok(ImageSource::Context { digest, dir })
}

/// Whether something is packed, by its directory, its path in it, and whether it is a directory.
type Filter = Box<dyn Fn(&Path, &Path, bool) -> bool + Send + Sync>;

async fn packed(
    what: &str,
    dir: &Path,
    tar: &Path,
    limits: Limits,
    filter: Filter,
) -> Result<Packed, IdeasFault> {
    let (from, to): (PathBuf, PathBuf) = (dir.to_owned(), tar.to_owned());
    let keep = move |dir: &Path, path: &Path, is_dir| match filter(dir, path, is_dir) {
        true => Keep::Yes,
        false => Keep::No,
    };
    let work = move || archive::pack(&from, &to, limits, &|path, is_dir| keep(&from, path, is_dir));
    let failed =
        |source| IdeasFault::Archive { what: format!("packing {what}, {}", dir.display()), source };
    supervise::blocking(work).await.map_err(failed)
}

/// Whether something of a checkout is the commit's, and may be given away: not what git keeps there,
/// and no link that leads outside.
fn in_checkout(dir: &Path, path: &Path, is_dir: bool) -> bool {
    if path == Path::new(".git") {
        return false;
    }
    let target = match is_dir {
        true => return true,
        false => std::fs::read_link(dir.join(path)),
    };
    // What is no link has no target.
    let Ok(target) = target else { return true };
    let link = ArchivePath::clean(path.as_os_str().as_bytes());
    let stays = |link| archive::link_stays_inside(&link, target.as_os_str().as_bytes());
    link.ok().flatten().is_some_and(stays)
}

/// Whether something in a directory of ideas is one: a regular file that is not hidden.
fn is_idea(dir: &Path, path: &Path, is_dir: bool) -> bool {
    let is_hidden = path.as_os_str().as_bytes().starts_with(b".");
    let is_file = || dir.join(path).symlink_metadata().is_ok_and(|found| found.is_file());
    !is_dir && !is_hidden && is_file()
}
