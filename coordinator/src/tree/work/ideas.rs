//! Ideas for several nodes at once.

use std::sync::Arc;

use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

use crate::run::tickets::{Ticket, Tickets};
use crate::tree::ids::NodeId;
use crate::tree::run::{IdeasOrder, TreeError, WorkError};

/// Has ideas written.
pub(super) struct Ideas {
    pub(super) stop: watch::Receiver<Option<StopLevel>>,
    pub(super) run: std::path::PathBuf,
    pub(super) script: String,
    /// Without which no command may run, if there are limits.
    pub(super) tickets: Option<Arc<Tickets>>,
}

impl Ideas {
    pub(super) async fn write(
        &self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        for order in orders {
            let _ticket = self.ticket().await?;
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

    /// Waits until one more command may run, unless a stop comes.
    async fn ticket(&self) -> Result<Option<Ticket>, TreeError> {
        let Some(tickets) = &self.tickets else { return Ok(None) };
        let mut stop = self.stop.clone();
        tokio::select! {
            ticket = tickets.llm() => Ok(Some(ticket)),
            _ = stop.wait_for(Option::is_some) => Err(WorkError::Stopped.into()),
        }
    }
}
