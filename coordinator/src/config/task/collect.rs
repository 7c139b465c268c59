//! `[[verifier.collect]]`: commands that prepare artifacts for collection.

use rollout_protocol::spec::task::CollectHook;

use super::super::elements::timeouts;
use super::super::reader::Field;
use super::TaskReadContext;

keys! {
    /// The keys of a collect command.
    pub(crate) table CollectKeys {
        command: Value("text"), "required", "The command.";
        service: Value("text"), "main", "Service to run it in.";
        timeout_sec: Value("seconds"), "60", "Its time limit.";
        user: Value("text|integer"), "image default", "User to run it as.";
    }
}

/// Default time limit of a command, seconds.
const DEFAULT_TIMEOUT_SEC: f64 = 60.0;

/// The commands, in file order.
pub(super) fn read(field: &Field<'_>, context: &mut TaskReadContext) -> Vec<CollectHook> {
    let items = field.items().unwrap_or_default();
    items.iter().filter_map(|item| hook(item, context)).collect()
}

fn hook(item: &Field<'_>, context: &mut TaskReadContext) -> Option<CollectHook> {
    let mut fields = item.mapping()?;
    let command = fields.take(CollectKeys::command);
    command.required("a command");
    let service = fields.take(CollectKeys::service);
    let service = context.service(service.non_empty_string(), &service);
    let timeout_sec = timeouts::read(&fields.take(CollectKeys::timeout_sec), DEFAULT_TIMEOUT_SEC);
    let user = context.user(&fields.take(CollectKeys::user));
    fields.finish();
    Some(CollectHook { command: command.non_empty_string()?, service, timeout_sec, user })
}
