//! Control of the port of the API server.

use tokio::sync::watch;

use super::server::PortSwitch;
use crate::wait;

/// Opens and closes the port.
#[derive(Debug)]
pub(super) struct PortControl {
    pub(super) wanted: watch::Sender<bool>,
    is_open: watch::Receiver<bool>,
}

impl PortControl {
    /// A port that is open, and its other end.
    pub(super) fn new() -> (Self, PortSwitch) {
        let (wanted, listening) = watch::channel(true);
        let (opened, is_open) = watch::channel(true);
        (Self { wanted, is_open }, PortSwitch { wanted: listening, is_open: opened })
    }

    /// Waits until the port is open or closed.
    pub(super) fn wait_until(&self, open: bool) {
        wait::until(wait::LONG_DEADLINE, "the port changes", || *self.is_open.borrow() == open);
    }
}
