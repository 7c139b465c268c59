//! Agents of the commands of searches: errors, prompts, and the document of a search.

use super::tests::{read, read_valid};
use super::*;
use crate::config::diagnostics::ErrorKind;

/// A search whose step `implement` has these keys.
fn with_implement(keys: &str) -> String {
    format!(
        "root_baseline_csv: base.csv\nenvironment: {{type: process}}\ncommands:\n  \
         ideas: {{run: ideas.sh}}\n  implement: {{{keys}}}\n  sweep: {{run: sweep.sh}}\n"
    )
}

const SHELL: &str = "agent: shell, model: lab/m, base_url: 'http://h', key_env: SET";

#[test]
fn agent_of_step_brings_its_model_server_and_shipped_prompt() {
    let tree = read_valid(&with_implement(&format!("{SHELL}, env: {{A: 1}}, max_turns: 7")));
    let command = &tree.commands.implement;
    let agent = command.agent.as_ref().expect("an agent");
    assert!(command.run.is_empty() && !agent.has_own_prompt);
    assert_eq!(command.env.keys().collect::<Vec<_>>(), ["A"], "without those of the agent");
    assert_eq!(agent.spec.env["ROLLOUT_MODEL"].as_str(), "m");
    let gateway = tree.gateway.as_ref().expect("a gateway");
    assert_eq!(gateway.spec.upstreams[0].name, "lab");
    let keys: Vec<_> = tree.variables().map(|variable| variable.template.as_str()).collect();
    assert_eq!(keys, ["1", "${SET}"]);
    let catalogued = "agent: 'gemini-cli@1.2.3', model: lab/m, base_url: 'http://h', key_env: SET";
    let tree = read_valid(&with_implement(catalogued));
    let agent = tree.commands.implement.agent.expect("an agent");
    assert!(agent.spec.install_once);
    assert_eq!(agent.spec.env["ROLLOUT_AGENT_VERSION"].as_str(), "1.2.3");
}

#[test]
fn mistakes_in_agent_of_step_are_errors_of_its_keys() {
    let key = |name: &str| format!("commands.implement.{name}");
    for (keys, at, kind) in [
        ("run: x, agent: shell, model: anthropic/m", key("run"), ErrorKind::Conflict),
        ("run: x, model: lab/m", key("model"), ErrorKind::Conflict),
        ("run: x, prompt_text: x", key("prompt_text"), ErrorKind::Conflict),
        ("timeout_sec: 3", key("run"), ErrorKind::MissingKey),
        ("agent: shell", "commands.implement".to_owned(), ErrorKind::MissingKey),
        ("agent: oracle", key("agent"), ErrorKind::BadValue),
        ("agent: claude-cod, model: anthropic/m", key("agent"), ErrorKind::MissingKey),
        ("agent: shell, model: anthropic/m, args: [a]", key("args"), ErrorKind::Conflict),
        ("agent: shell, model: antropic/m", key("model"), ErrorKind::BadValue),
        ("agent: shell, model: anthropic/m, prompt: gone.md", key("prompt"), ErrorKind::NotFound),
        (
            "agent: shell, model: anthropic/m, prompt_text: '{{count}}'",
            key("prompt_text"),
            ErrorKind::BadValue,
        ),
        ("agent: shell, model: anthropic/m, execute: x", key("execute"), ErrorKind::UnknownKey),
    ] {
        // A server of its own needs no key of this host.
        let keys = keys.replace("anthropic/m", "lab/m, base_url: 'http://h'");
        let (_, faults) = read(&with_implement(&keys), TreeOverrides::default());
        assert_eq!(faults, [(at, kind)], "{keys}");
    }
    let tests = with_implement(SHELL).replace("  sweep:", "  tests: {agent: shell}\n  sweep:");
    let (_, faults) = read(&tests, TreeOverrides::default());
    let unknown = ("commands.tests.agent".to_owned(), ErrorKind::UnknownKey);
    assert!(faults.contains(&unknown), "{faults:?}");
}

#[test]
fn resumed_search_keeps_scripts_and_shipped_prompt_but_no_change_of_its_own() {
    let read = |keys: &str| {
        let mut tree = read_valid(&with_implement(keys));
        tree.name = "n".to_owned();
        tree
    };
    let keys = "agent: gemini-cli, model: lab/m, base_url: 'http://h'";
    let mut recorded = tree_document(&read(keys));
    let resolved = &mut recorded["commands"]["implement"]["resolved"];
    resolved["spec"]["kind"]["execute"] = "older".into();
    resolved["prompt"] = "older".into();

    let mut tree = read(keys);
    assert_eq!(differences(&recorded, &tree_document(&tree)).len(), 2);
    tree.keep_agents(&recorded);
    assert_eq!(differences(&recorded, &tree_document(&tree)), [""; 0]);
    assert_eq!(tree.commands.implement.agent.expect("an agent").prompt, "older");

    for other in [", args: [x]", ", prompt_text: x", ", effort: low"] {
        let mut tree = read(&format!("{keys}{other}").replace("gemini-cli", "codex"));
        tree.keep_agents(&recorded);
        assert!(!differences(&recorded, &tree_document(&tree)).is_empty(), "{other}");
    }
    let mut tree = read(&format!("{keys}, args: [x]"));
    tree.keep_agents(&recorded);
    assert!(!differences(&recorded, &tree_document(&tree)).is_empty());
    let moved = read(&keys.replace("http://h", "http://other"));
    let document = tree_document(&moved);
    assert_ne!(document["gateway"], recorded["gateway"]);
}

#[test]
fn document_of_search_with_scripts_has_no_agents() {
    let document = tree_document(&read_valid(&with_implement("run: x")));
    assert_eq!(document.get("gateway"), None);
    let command = document["commands"]["implement"].as_object().expect("a command");
    let keys: Vec<_> = command.keys().map(String::as_str).collect();
    assert_eq!(keys, ["env", "environment", "run", "timeout_sec"]);
}

const PRICED: &str = "gateway: {upstreams: [{name: lab, dialect: openai, url: 'http://h', prices: {input: 1, output: 2}}]}\n";

#[test]
fn budgets_of_steps_and_depths_are_read() {
    let file = with_implement("agent: shell, model: lab/m");
    let budgets = "budgets: {depth_cost: 3.5, step: {cost: 0.5, calls: 40, output_reserve: 9000}}\neval_retries: 1\n";
    let tree = read_valid(&format!("{file}{PRICED}{budgets}"));
    let step = tree.budgets.step.expect("a budget");
    assert_eq!((step.limits.cost, step.limits.calls), (Some(0.5), Some(40)));
    assert_eq!((tree.budgets.depth_cost, tree.max_attempt_cost()), (Some(3.5), Some(0.5)));
    let document = tree_document(&tree);
    assert_eq!(document["budgets"]["step"]["calls"], 40, "{document:#}");
    assert_eq!(step.output_reserve, 9000);
    let exact = "budgets: {depth_cost: 0.3, step: {cost: 0.1}}\neval_retries: 2\n";
    assert!(read_valid(&format!("{file}{PRICED}{exact}")).budgets.depth_cost.is_some());
    let before = tree_document(&read_valid(&format!("{file}{PRICED}")));
    assert!(differences(&before, &document).iter().any(|line| line.starts_with("budgets.step")));
}

#[test]
fn budgets_that_cannot_be_kept_are_errors() {
    let shell = with_implement("agent: shell, model: lab/m");
    let script = with_implement("run: x");
    for (file, more, key) in [
        (&shell, "budgets: {step: {cost: 1}}\n".to_owned(), "budgets"),
        (&script, format!("{PRICED}budgets: {{step: {{calls: 1}}}}\n"), "budgets"),
        (&shell, format!("{PRICED}budgets: {{depth_cost: 1}}\n"), "budgets"),
        (&shell, format!("{PRICED}budgets: {{depth_cost: 1, step: {{cost: 2}}}}\n"), "budgets"),
        (&shell, format!("{PRICED}budgets: {{step: {{money: 2}}}}\n"), "budgets.step.money"),
    ] {
        let base = if more.starts_with(PRICED) || file == &script {
            file.clone()
        } else {
            file.replace("lab/m", "lab/m, base_url: 'http://h'")
        };
        let (_, faults) = read(&format!("{base}{more}"), TreeOverrides::default());
        assert_eq!(faults.len(), 1, "{more}: {faults:?}");
        assert_eq!(faults[0].0, key, "{more}");
    }
}
