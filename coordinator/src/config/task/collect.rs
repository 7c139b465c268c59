//! `[[verifier.collect]]`: commands that make a result ready to be taken.

use rollout_protocol::spec::task::CollectHook;

use super::super::elements::timeouts;
use super::super::reader::Field;
use super::TaskReadContext;

keys! {
    /// The keys of a command that makes results ready.
    pub(crate) table CollectKeys {
        command: "text", "required", "The command.";
        service: "text", "main", "Service that it runs in.";
        timeout_sec: "seconds", "60", "Its time limit.";
        user: "text|integer", "the image's", "User that it runs as.";
    }
}

/// Time limit of a command that has none of its own, seconds.
const DEFAULT_TIMEOUT_SEC: f64 = 60.0;

/// The commands, in the order of the file.
pub(super) fn read(field: &Field<'_>, reading: &mut TaskReadContext) -> Vec<CollectHook> {
    let items = field.items().unwrap_or_default();
    items.iter().filter_map(|item| hook(item, reading)).collect()
}

fn hook(item: &Field<'_>, reading: &mut TaskReadContext) -> Option<CollectHook> {
    let mut fields = item.mapping()?;
    let command = fields.take(CollectKeys::command);
    command.required("a command");
    let service = fields.take(CollectKeys::service);
    let service = reading.service(service.non_empty_string(), &service);
    let timeout_sec = timeouts::read(&fields.take(CollectKeys::timeout_sec), DEFAULT_TIMEOUT_SEC);
    let user = reading.user(&fields.take(CollectKeys::user));
    fields.finish();
    Some(CollectHook { command: command.non_empty_string()?, service, timeout_sec, user })
}
