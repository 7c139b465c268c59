//! Execution of work in environments, for every kind of work: a recipe in [`crate::work`] says which
//! scripts run and what is kept of them.
//!
//! * `context`: the services of a worker, and those who are told of an execution;
//! * `files`: files of tasks on this host; `bases`: digests of base images that a run has chosen;
//! * `script` and `capture`: one script, its time limit, and its output;
//! * `cost`: the cost that a command reports;
//! * `timing`: times of the phases;
//! * `park`: waiting for a service that gives no answer; `stop`: waiting for a stop;
//! * `teardown`: the end of an environment.

mod bases;
mod capture;
mod context;
pub mod cost;
mod files;
mod park;
mod script;
mod stop;
mod teardown;
mod timing;

pub use self::capture::{Capture, Captured, last_words, tail};
pub(crate) use self::context::{COPY_LIMIT, within};
pub use self::context::{OwnSlot, PhaseSink, Slot, TrialServices};
pub use self::files::{FilesError, TaskFiles, TaskPart};
pub(crate) use self::park::{Park, Waited, Waiter};
pub use self::script::{End, Normal, Ran, kill, run};
pub use self::stop::{killed, stopped};
pub(crate) use self::teardown::{Torn, teardown};
pub(crate) use self::timing::Timing;
