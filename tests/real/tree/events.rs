//! Progress events of searches as JSON lines.

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

/// Output lines of a search that runs to its end.
fn run_lines(project: &Project) -> Vec<Value> {
    let ended = project.rollout(&SmallSearch::run(&["--json"])).wait(DEADLINE);
    let out = ended.expect_code(ExitCode::Success).stdout;
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == kind).collect()
}

#[test]
fn json_events_have_decisions_phases_and_result() {
    let project = SmallSearch::default().write();
    let first = run_lines(&project);
    let [started] = of_kind(&first, "search_started")[..] else { panic!("{first:?}") };
    assert_eq!((&started["search"], &started["planned"]), (&"small".into(), &0.into()));
    assert_eq!(of_kind(&first, "depth_planned")[0]["evals"], 2);
    assert_eq!(of_kind(&first, "eval_started").len(), 2);
    let ended = of_kind(&first, "eval_ended");
    assert!(ended.len() == 2 && ended.iter().all(|end| end["status"] == "completed"), "{ended:?}");
    let decided = of_kind(&first, "depth_decided");
    assert_eq!((decided.len(), decided[0]["stop"].as_str()), (1, Some("max_depth_reached")));
    let phases = of_kind(&first, "trial_phase");
    let names = |kind| phases.iter().map(move |phase| &phase[kind]).filter(|name| name.is_object());
    assert!(names("trial").next().is_none(), "{phases:?}");
    assert!(names("ideas").all(|name| name["node"] == "0000") && names("ideas").next().is_some());
    assert!(names("eval").any(|name| name["eval"] == "0001" && name["attempt"] == 1));
    let settled = of_kind(&first, "trial_settled");
    let of_eval = settled.iter().filter(|line| line["settlement"]["eval"].is_object());
    assert_eq!((settled.len(), of_eval.count()), (3, 2), "one for ideas, two for evals");

    let again = run_lines(&project);
    let [started] = of_kind(&again, "search_started")[..] else { panic!("{again:?}") };
    assert_eq!(
        (&started["settled"], &started["best"]["score"]),
        (&2.into(), { &of_kind(&first, "depth_decided")[0]["promoted"][0]["score"] })
    );
    for all in [first, again] {
        let mut result = all.last().expect("a line").clone();
        assert_eq!(
            result.as_object_mut().expect("an object").remove("event"),
            Some("result".into())
        );
        let shown = project.rollout(&["tree", "show", "runs/small", "--json"]).wait(DEADLINE);
        let shown = shown.expect_code(ExitCode::Success).stdout;
        assert_eq!(result, serde_json::from_str::<Value>(&shown).expect("JSON"));
    }
}
