//! Ideas for several nodes at once.

use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

use crate::tree::ids::NodeId;
use crate::tree::run::{IdeasOrder, TreeError, WorkError};

/// Has ideas written.
pub(super) struct Ideas {
    pub(super) stop: watch::Receiver<Option<StopLevel>>,
}

impl Ideas {
    pub(super) async fn write(
        &self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let _ = (orders, done, &self.stop);
        Err(WorkError::Stopped.into())
    }
}
