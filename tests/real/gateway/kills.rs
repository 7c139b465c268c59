//! The program is killed while replies come: no reply that an agent saw whole lacks its record.

use std::collections::BTreeSet;
use std::time::Duration;

use rollout_tests::model_calls::files;
use rollout_tests::model_server::ModelServer;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::Value;

use crate::gateway::DEADLINE;
use crate::gateway::fixture::{DIALECTS, asked, project, start};

/// Streams at once.
const STREAMS: usize = 200;

/// Replies of which some are whole when the program is killed.
const WHOLE: usize = 60;

#[test]
fn whole_replies_have_records_after_kill_during_streams_in_sandbox() {
    let server = ModelServer::start(Duration::from_millis(15));
    let agent = format!(
        "def one(number):\n    \
         ask(DIALECTS[number % len(DIALECTS)], 's%d' % number, 'prompt %d ' % number, True, 5 + number)\n\
         threads = [threading.Thread(target=one, args=[number]) for number in range({STREAMS})]\n\
         for thread in threads: thread.start()\n\
         for thread in threads: thread.join()\n"
    );
    let project = project(&server, &agent, "", "");
    let mut run = start(&project);
    let whole = || -> Vec<String> {
        let names = files(project.path()).into_iter().filter_map(|file| {
            let name = file.file_name()?.to_str()?.to_owned();
            name.strip_suffix(".whole").map(str::to_owned)
        });
        names.collect()
    };
    wait::until(DEADLINE, "some whole replies", || whole().len() >= WHOLE);
    run.signal(Signal::KILL);
    let _killed = run.wait(DEADLINE);
    let whole: BTreeSet<String> = whole().into_iter().collect();
    assert!((WHOLE..STREAMS).contains(&whole.len()), "killed in the middle: {}", whole.len());
    let calls =
        files(project.path()).into_iter().filter(|file| file.ends_with("gateway/calls.jsonl"));
    let text: String = calls.map(|file| std::fs::read_to_string(file).expect("calls")).collect();
    let lines: Vec<Value> =
        text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    let prompt = |line: &Value| {
        let request: Value = serde_json::from_str(line["request"]["text"].as_str()?).ok()?;
        Some(format!("s{}", asked(&request)?.split(' ').nth(1)?))
    };
    let names: std::collections::BTreeMap<u64, String> = lines
        .iter()
        .filter(|line| line["type"] == "begun")
        .filter_map(|line| Some((line["call"].as_u64()?, prompt(line)?)))
        .collect();
    let ended = lines.iter().filter(|line| line["type"] == "ended" && line["end"] == "complete");
    let recorded: BTreeSet<String> =
        ended.filter_map(|line| names.get(&line["call"].as_u64()?).cloned()).collect();
    for (place, dialect) in DIALECTS.iter().enumerate() {
        let of_dialect = |name: &&String| {
            name[1..].parse::<usize>().is_ok_and(|number| number % DIALECTS.len() == place)
        };
        assert!(whole.iter().any(|name| of_dialect(&name)), "{dialect} has none");
    }
    let missing: Vec<_> = whole.difference(&recorded).collect();
    assert!(missing.is_empty(), "whole for the agent, without a record: {missing:?}");
    let log = server.calls();
    assert_eq!(log.len(), names.len(), "every call that was sent was begun");
    // The next session removes the sandbox.
    let _ended = start(&project).wait(DEADLINE);
}
