//! Agents that follow the contract of a harness: their script and variables.

use rollout_protocol::spec::harness::HarnessSpec;

/// Variable with the path of the input document.
const INPUT_VARIABLE: &str = "ROLLOUT_TRIAL_INPUT";

/// Variable with the path of the output document.
const OUTPUT_VARIABLE: &str = "ROLLOUT_TRIAL_OUTPUT";

/// Variable with the path of the control file.
const CONTROL_VARIABLE: &str = "ROLLOUT_CONTROL_PATH";

/// Variable with the path of the events, if the harness writes some.
const EVENTS_VARIABLE: &str = "ROLLOUT_EVENTS_PATH";

/// The variables of a harness with their values. Some paths have a second name, which programs
/// written for the contract expect.
pub fn harness_variables(
    harness: &HarnessSpec,
) -> impl Iterator<Item = (&'static str, &str)> + use<'_> {
    let events = harness.events_path.as_deref().map(|path| (EVENTS_VARIABLE, path));
    [
        (INPUT_VARIABLE, harness.input_path.as_str()),
        ("AGENTLAB_TRIAL_INPUT", harness.input_path.as_str()),
        (OUTPUT_VARIABLE, harness.output_path.as_str()),
        ("AGENTLAB_TRIAL_OUTPUT", harness.output_path.as_str()),
        (CONTROL_VARIABLE, harness.control_path.as_str()),
        ("AGENTLAB_CONTROL_PATH", harness.control_path.as_str()),
    ]
    .into_iter()
    .chain(events)
}

/// The script of a harness. Results of an earlier step, or of the image, are not taken for those of
/// this one; the input is also the standard input of the command.
pub(super) fn script(harness: &HarnessSpec) -> String {
    let events = harness
        .events_path
        .as_ref()
        .map_or_else(String::new, |_| format!(" \"${EVENTS_VARIABLE}\""));
    let command = &harness.command;
    format!(
        "rm -f -- \"${OUTPUT_VARIABLE}\"{events} || exit\n\
         exec < \"${INPUT_VARIABLE}\" || exit\n\
         {command}\n"
    )
}
