//! The command `ideas`: has ideas for a node written, in an environment of its own.
//!
//! ```text
//! checkout, earlier ideas, what is known of the node -> environment -> command
//!   -> everything is ended, /ideas is taken out -> the order's directory
//! ```
//!
//! # For whoever runs searches
//! * One [`Generator`] serves a whole search; it may write ideas for several nodes at once. Whoever
//!   calls it says how many.
//! * A call must not be dropped before its end: its environment would stay until a reaper finds this
//!   process dead. A `drain` is obeyed before the command begins, a `kill` at any moment; on every
//!   path the environment is gone afterwards.
//! * The command finds everything by the variables of [`variables`]. Regular files directly in the
//!   ideas' directory are ideas; whatever else is there is left out, and `left_out.txt` says why.
//! * What it printed is in `logs/ideas/<node>/` below the run's directory, and so is what it left in
//!   its logs' directory.

mod course;
mod error;
mod harvest;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
mod uploads;
pub mod variables;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_protocol::digest::Hasher;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::environment::{Labels, Owner};
use rollout_worker::executor::TrialServices;
use rollout_worker::fs_remove;
use tokio::sync::watch;

use self::course::Course;
use super::driver::IdeasOrder;
use super::ids::NodeId;
use crate::config::TreeFile;

pub use self::error::{IdeasError, IdeasFault};

/// Runs the command `ideas` of a search.
#[derive(Debug)]
pub struct Generator {
    tree: TreeFile,
    services: Arc<TrialServices>,
    holder: Holder,
}

/// Whose environments are made: when that process is dead, they are removed.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The run.
    pub run: RunId,
    /// The worker.
    pub worker: WorkerId,
    /// The process.
    pub owner: Owner,
}

impl Generator {
    /// The generator of a search. The services have the provider of the command's environment, and
    /// the variables that it refers to.
    pub fn new(tree: &TreeFile, services: Arc<TrialServices>, holder: Holder) -> Self {
        Self { tree: tree.clone(), services, holder }
    }

    /// Runs the command for a node: its ideas are in the order's directory when this returns. Gives
    /// what the command reports that it cost. Must not be dropped before.
    ///
    /// # Errors
    /// [`IdeasError`]; what is in the directory then is of no use.
    pub async fn generate(
        &self,
        order: &IdeasOrder,
        stop: watch::Receiver<Option<StopLevel>>,
    ) -> Result<f64, IdeasError> {
        let node = order.node.node_id;
        let work = self.run_dir().join("node_ideas").join(format!(".work-{node}"));
        let mut course = Course::new(self, order, stop, work);
        let ended = course.guarded().await;
        course.tear_down().await;
        if let Err(error) = fs_remove::remove(course.work()).await {
            let path = course.work().display();
            tracing::warn!(%path, %error, "what was packed for ideas cannot be removed");
        }
        ended.map_err(|fault| IdeasError { node, fault })
    }

    fn run_dir(&self) -> PathBuf {
        self.tree.run_dir()
    }

    /// Where what the command printed goes.
    fn logs(&self, node: NodeId) -> PathBuf {
        self.run_dir().join("logs").join("ideas").join(node.to_string())
    }

    /// A new execution.
    fn labels(&self, node: NodeId) -> Labels {
        let mut hasher = Hasher::default();
        for part in ["ideas", &self.tree.name, &node.to_string()] {
            hasher.part(part.as_bytes());
        }
        let mut item = [0; 16];
        item.copy_from_slice(&hasher.finish().as_bytes()[..16]);
        let Holder { run, worker, owner } = self.holder.clone();
        Labels {
            run,
            item: ItemId::from_bytes(item),
            try_id: TryId::first(1),
            exec: ExecId::from_bytes(rand::random()),
            worker,
            owner,
        }
    }
}

/// The name of a file or directory in an environment, made of one on this host.
fn tame(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().take(60).map(plain).collect()
}
