//! Execution of work in environments, shared by all kinds of work. A recipe in [`crate::work`]
//! defines the scripts to run and the outputs to keep.
//!
//! * `context`: services of the worker, the slot and the phase sink of an execution;
//! * `control`: controls for a harness that runs; `event_log`: its events while it runs;
//! * `files`: task files on this host; `base_digests`: base image digests chosen by a run;
//! * `environment`: one environment from its request to its removal; `teardown`: its end;
//! * `allowlist`: its access to the hosts of an allowlist;
//! * `sidecars`: services beside an environment;
//! * `image`: source and preparation of an image;
//! * `finished`: the result: a record and the files that become part of it;
//! * `errors`: the error table;
//! * `script` and `capture`: one script, its time limit and its output; `last_lines`: the end of its
//!   standard error, for messages; `unrecorded`: output that is only quoted; `output_files`: the output of
//!   an execution that has ended;
//! * `full_disk`: disks of this host that were full during an execution; `environment_fault`:
//!   environments that were removed from outside, or whose allowed hosts were not served; `host_fault`: the
//!   error of both;
//! * `live_output`: output of an execution that runs;
//! * `collect`: directories of an environment as clean archives; `likely_secrets`: flags of kept files;
//! * `cost`: the cost that a command reports;
//! * `timing`: start and end times of the phases;
//! * `recipe`: the interface of a kind of work, and the attempt state that all kinds share;
//! * `attempt`: attempts of one execution until one has a result, each from its phases to its
//!   teardown;
//! * `parking`: waiting for a service that does not answer; `stop`: waiting for a stop.

mod allowlist;
mod attempt;
mod base_digests;
mod capture;
mod collect;
mod context;
mod control;
pub mod cost;
mod environment;
mod environment_fault;
pub(crate) mod errors;
mod event_log;
mod files;
mod finished;
mod full_disk;
mod host_fault;
mod image;
mod last_lines;
mod likely_secrets;
mod live_output;
mod output_files;
mod parking;
mod recipe;
mod script;
mod sidecars;
mod stop;
mod teardown;
mod timing;
mod unrecorded;

pub(crate) use self::attempt::execute;
pub use self::capture::{Capture, CapturedStream, read_tail};
pub use self::collect::{CleanArchive, DirectoryReading, read_directory};
pub(crate) use self::collect::{CollectionFailure, open_stream, read_sanitized};
pub(crate) use self::context::{COPY_LIMIT, with_timeout};
pub use self::context::{
    DedicatedSlot, ExecutionContext, ExecutionServices, PhaseSink, ScratchWork, Slot,
};
pub use self::control::{ControlMailbox, MailboxGuard, MailboxRefusal, PendingControl};
pub use self::environment::{CreationFailure, ManagedEnvironment, RemovalOutcome};
pub(crate) use self::environment_fault::EnvironmentFault;
pub use self::event_log::{EventLogSink, NewEventChunk, NoEventLog};
pub use self::files::{FilesError, TaskFiles, TaskPart};
pub use self::finished::{
    ArchiveCounts, FileRole, Finished, HarnessPart, RecordFile, RecordWithFiles,
};
pub(crate) use self::host_fault::FaultedExecution;
pub use self::image::prepare_image;
pub(crate) use self::image::{BUILD_LOG, BuildLog, RequestedImage};
pub use self::last_lines::stderr_summary;
pub(crate) use self::likely_secrets::possible_secrets;
pub(crate) use self::live_output::CaptureList;
pub use self::live_output::read_output;
pub(crate) use self::output_files::{OutputFiles, finish_outputs};
pub(crate) use self::recipe::{AttemptState, PhaseInterrupt, WorkRecipe};
pub(crate) use self::script::ScriptLimit;
pub use self::script::{NormalExit, ScriptEnd, ScriptRun, kill_processes, run_command, run_until};
pub use self::sidecars::Sidecar;
pub use self::stop::{wait_for_kill, wait_for_stop};
