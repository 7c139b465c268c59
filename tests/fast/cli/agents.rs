//! `rollout agents`: built-in agents and those of the catalogue.

use rollout_protocol::exit::ExitCode;
use serde_json::Value;

use crate::cli::{DEADLINE, project};

const BUILT_IN: [&str; 3] = ["oracle", "nop", "shell"];

fn printed(arguments: &[&str]) -> String {
    project().rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Success).stdout
}

#[test]
fn built_in_agents_are_listed_before_those_of_catalogue() {
    let text = printed(&["agents", "list"]);
    let names: Vec<&str> =
        text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names[..3], BUILT_IN, "{text}");
    assert!(names.contains(&"codex"), "{text}");
    let document: Value =
        serde_json::from_str(&printed(&["agents", "list", "--json"])).expect("JSON");
    let agents = document.as_array().expect("a list");
    assert_eq!(agents.len(), names.len());
    let built_in = agents.iter().filter(|agent| agent["built_in"] == true);
    let built_in: Vec<&str> = built_in.filter_map(|agent| agent["name"].as_str()).collect();
    assert_eq!(built_in, BUILT_IN);
}

#[test]
fn built_in_agents_are_shown_with_their_options() {
    for (name, options) in [
        ("oracle", "options   none"),
        ("nop", "options   none"),
        ("shell", "options   system_prompt, max_turns, command_timeout_sec"),
    ] {
        let text = printed(&["agents", "show", name]);
        assert!(text.starts_with(&format!("{name}: ")), "{text}");
        assert!(text.lines().any(|line| line == options), "{text}");
        let document = printed(&["agents", "show", name, "--json"]);
        let document: Value = serde_json::from_str(&document).expect("JSON");
        assert_eq!((&document["name"], &document["built_in"]), (&name.into(), &true.into()));
    }
}

#[test]
fn agent_with_similar_name_is_hinted_at() {
    let exit = project().rollout(&["agents", "show", "shel"]).wait(DEADLINE);
    let exit = exit.expect_code(ExitCode::Usage);
    assert!(exit.stderr.contains("did you mean `shell`?"), "{}", exit.stderr);
}
