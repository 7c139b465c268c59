//! Commands for runs whose coordinators run: through the control socket of a run directory, or over
//! NATS. The commands and their answers are the same.

mod cancel;
mod control;
mod pause;
mod retry;
mod run_id;
mod target;

pub(super) use self::cancel::{CancelArgs, cancel};
pub(super) use self::control::{ControlArgs, control};
pub(super) use self::pause::{PauseArgs, end_pause, pause};
pub(super) use self::retry::retry;
pub(super) use self::target::LiveRun;
#[cfg(feature = "nats")]
pub(super) use super::nats::NatsArgs as ServerArgs;

/// Options of a server, which this program cannot use.
#[cfg(not(feature = "nats"))]
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ServerArgs {}
