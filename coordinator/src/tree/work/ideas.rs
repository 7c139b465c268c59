//! Ideas for several nodes at once.

use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

use crate::tree::ids::NodeId;
use crate::tree::run::{IdeasOrder, TreeError};

/// Has ideas written.
pub(super) struct Ideas {
    pub(super) stop: watch::Receiver<Option<StopLevel>>,
    pub(super) run: std::path::PathBuf,
    pub(super) script: String,
}

impl Ideas {
    pub(super) async fn write(
        &self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let _x = &self.stop;
        for order in orders {
            let c: Vec<String> = order
                .context
                .iter()
                .map(|p| p.canonicalize().unwrap().display().to_string())
                .collect();
            let s = std::process::Command::new("bash")
                .arg("-c")
                .arg(&self.script)
                .current_dir(self.run.join(&order.node.worktree_path))
                .env("ROLLOUT_IDEAS_DIR", order.into.canonicalize().unwrap())
                .env("ROLLOUT_IDEAS_COUNT", order.count.to_string())
                .env("ROLLOUT_NODE_ID", order.node.node_id.to_string())
                .env(
                    "ROLLOUT_REPOSITORY",
                    self.run.join(&order.node.worktree_path).canonicalize().unwrap(),
                )
                .env("ROLLOUT_CONTEXT_IDEAS_DIRS", c.join(":"))
                .env("ROLLOUT_CONTEXT_PACK_DIR", order.pack.canonicalize().unwrap())
                .env("ROLLOUT_LOGS_DIR", "/tmp")
                .status()
                .unwrap();
            assert!(s.success());
            done(order.node.node_id)?;
        }
        Ok(())
    }
}
