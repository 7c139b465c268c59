use serde_json::json;

use super::*;

const MINIMAL_TREE: &str = "\
root_baseline_csv: base.csv
environment: {type: process}
commands:
  ideas: {run: ideas.sh}
  implement: {run: implement.sh}
  sweep: {run: sweep.sh}
";

pub(super) fn read(
    text: &str,
    overrides: TreeOverrides,
) -> (Option<TreeFile>, Vec<(String, ErrorKind)>) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tree.yaml");
    std::fs::write(&file, text).expect("written");
    std::fs::write(dir.path().join("base.csv"), "config_id\n").expect("written");
    let mut problems = Diagnostics::default();
    let is_set = |name: &str| name == "SET";
    let options = TreeOptions { overrides, ..TreeOptions::for_command_line(&is_set) };
    let tree = read_tree(&file, &options, &mut problems);
    let faults = match problems.finish(()) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.errors.into_iter().map(|error| (error.key, error.kind)).collect(),
    };
    (tree, faults)
}

pub(super) fn read_valid(text: &str) -> TreeFile {
    let (tree, faults) = read(text, TreeOverrides::default());
    assert_eq!(faults, []);
    tree.expect("a search")
}

#[test]
fn search_file_missing_keys_use_defaults() {
    let tree = read_valid(MINIMAL_TREE);
    assert_eq!(tree.root_commit, "HEAD");
    let search = &tree.search;
    assert_eq!((search.ideas_per_node, search.max_depth, search.beam_width), (7, 3, 1));
    assert_eq!((search.min_candidate_rows, search.min_ok_rate), (100, 1.0));
    assert_eq!(tree.results_file, "meta_config_sweep_results.csv");
    assert_eq!(tree.profile.name, "returns");
    assert_eq!(tree.commands.sweep.environment, tree.environment);
    assert_eq!(tree.budgets, SearchBudgets::default());
}

#[test]
fn search_file_in_json_with_cli_overrides_is_parsed() {
    let text = "{\"root_baseline_csv\": \"base.csv\", \"environment\": {\"docker_image\": \"a\"}, \
        \"beam_width\": 4, \"budgets\": {\"evals\": 9, \"cost\": 1.5}, \"commands\": \
        {\"ideas\": {\"run\": \"a\"}, \"implement\": {\"run\": \"b\"}, \"sweep\": {\"run\": \"c\"}}}";
    let overrides = TreeOverrides {
        beam_width: Some(2),
        tree_run_id: Some("other".to_owned()),
        max_total_idea_evals: Some(3),
        ..TreeOverrides::default()
    };
    let (tree, faults) = read(text, overrides);
    assert_eq!(faults, []);
    let tree = tree.expect("a search");
    assert_eq!((tree.search.beam_width, tree.name.as_str()), (2, "other"));
    assert_eq!(
        tree.budgets,
        SearchBudgets { evals: Some(3), cost: Some(1.5), ..SearchBudgets::default() }
    );
    let bad = TreeOverrides { tree_run_id: Some("a/b".to_owned()), ..TreeOverrides::default() };
    assert_eq!(read(text, bad).1, [("--tree-run-id".to_owned(), ErrorKind::BadValue)]);
}

#[test]
fn search_file_errors_are_all_reported() {
    let text = "\
idea_per_node: 3
beam_width: 0
root_commit: --upload-pack=x
min_ok_rate: 2
artifact_policy: copy
max_total_idea_evals: 3
budgets: {evals: 4, seconds: -1}
profile: {metrics: [{column: a, weight: 0}], primry: {column: a}}
commands:
  ideas: {run: a, env: {AGENTIC_OUTPUT_DIR: x, A: '${UNSET}', B: '${SET}'}}
  implement: {run: b, environment: {docker_image: a, context: .}, timeout: 3}
environment: {}
";
    let (_, faults) = read(text, TreeOverrides::default());
    let expected = [
        ("root_baseline_csv", ErrorKind::MissingKey),
        ("idea_per_node", ErrorKind::UnknownKey),
        ("beam_width", ErrorKind::BadValue),
        ("root_commit", ErrorKind::BadValue),
        ("min_ok_rate", ErrorKind::BadValue),
        ("artifact_policy", ErrorKind::BadValue),
        ("budgets.evals", ErrorKind::Conflict),
        ("budgets.seconds", ErrorKind::BadValue),
        ("profile.primary", ErrorKind::MissingKey),
        ("profile.primry", ErrorKind::UnknownKey),
        ("profile.metrics[0].weight", ErrorKind::BadValue),
        ("commands.sweep", ErrorKind::MissingKey),
        ("commands.ideas.env.AGENTIC_OUTPUT_DIR", ErrorKind::BadValue),
        ("commands.ideas.env.A", ErrorKind::UnsetVariable),
        ("commands.implement.environment.context", ErrorKind::Conflict),
        ("commands.implement.timeout", ErrorKind::UnknownKey),
        ("environment", ErrorKind::MissingKey),
    ];
    for (key, kind) in expected {
        assert!(faults.contains(&(key.to_owned(), kind)), "{key} {kind:?} not in {faults:#?}");
    }
    // With no valid metric left, the whole profile is one more error.
    assert_eq!(faults.len(), expected.len() + 1, "{faults:#?}");
}

#[test]
fn search_file_inline_profile_is_read_missing_path_is_error() {
    let tree = read_valid(&format!(
        "{MINIMAL_TREE}profile: {{primary: {{column: speed}}, metrics: [{{column: speed, weight: 1}}, \
         {{column: memory, direction: lower, weight: 0.5}}], explore: {{min_positive: 1}}}}\n"
    ));
    assert_eq!((tree.profile.name.as_str(), tree.profile.metrics.len()), ("inline", 2));
    assert_eq!(tree.profile.check(), Ok(()));
    let remote = MINIMAL_TREE.replace("base.csv", "gone.csv");
    let (_, faults) = read(&remote, TreeOverrides::default());
    assert_eq!(faults, [("root_baseline_csv".to_owned(), ErrorKind::NotFound)]);
    let directory = MINIMAL_TREE.replace("base.csv", ".");
    let (_, faults) = read(&directory, TreeOverrides::default());
    assert_eq!(faults, [("root_baseline_csv".to_owned(), ErrorKind::NotFound)]);
    let missing = format!("{MINIMAL_TREE}context_ideas_dirs: [., gone]\n");
    let (_, faults) = read(&missing, TreeOverrides::default());
    assert_eq!(faults, [("context_ideas_dirs[1]".to_owned(), ErrorKind::NotFound)]);
    let (_, faults) = read(&format!("{MINIMAL_TREE}profile: no-such\n"), TreeOverrides::default());
    assert_eq!(faults, [("profile".to_owned(), ErrorKind::BadValue)]);
}

#[test]
fn search_config_change_that_affects_decisions_is_listed() {
    let before = tree_document(&read_valid(MINIMAL_TREE));
    let change = |more: &str| {
        let mut now = tree_document(&read_valid(&format!("{MINIMAL_TREE}{more}\n")));
        now["tree_run_id"] = before["tree_run_id"].clone();
        differences(&before, &now)
    };
    assert_eq!(change("max_parallel_evals: 9\nlimits: {llm_max_inflight: 2}"), [""; 0]);
    assert_eq!(change("retry: {max_park_sec: 5}"), [""; 0]);
    assert_eq!(change("sweep_config_limit: 5"), ["sweep_config_limit: null is now 5"]);
    assert_eq!(change("budgets: {evals: 3}"), ["budgets.evals: null is now 3"]);
}

#[test]
fn search_command_on_remote_worker_needs_no_local_env() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tree.yaml");
    std::fs::write(dir.path().join("base.csv"), "config_id\n").expect("written");
    let text = MINIMAL_TREE.replace("run: ideas.sh", "run: ideas.sh, env: {A: '${OURS}'}");
    let text = text.replace("run: sweep.sh", "run: sweep.sh, env: {B: '${THEIRS}'}");
    std::fs::write(&file, text).expect("written");
    let keys = |is_remote| {
        let is_set = |_: &str| false;
        let options = TreeOptions { is_remote, ..TreeOptions::for_command_line(&is_set) };
        let mut problems = Diagnostics::default();
        let tree = read_tree(&file, &options, &mut problems);
        let errors = problems.finish(tree).err().map(|faults| faults.errors).unwrap_or_default();
        errors.into_iter().map(|error| error.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(false), ["commands.ideas.env.A", "commands.sweep.env.B"]);
    assert_eq!(keys(true), Vec::<String>::new());
}

#[test]
fn search_builds_are_guarded_in_every_environment() {
    let text = MINIMAL_TREE.replace("{type: process}", "{docker_image: a}");
    let mut commands = read_valid(&text).commands;
    commands.tests = Some(commands.sweep.clone());
    commands.set_build_guard(Some(&["h:5000".parse().expect("a rule")]));
    assert_eq!(commands.named().count(), 4);
    for (name, command) in commands.named() {
        let provider = serde_json::to_value(&command.environment.provider).expect("plain data");
        assert_eq!(provider["guards_builds"], true, "{name}");
        assert_eq!(provider["allowed_registries"][0], "h:5000", "{name}");
    }
}

#[test]
fn search_without_tree_run_id_is_unnamed() {
    assert!(!read_valid(MINIMAL_TREE).is_named);
    assert!(read_valid(&format!("tree_run_id: mine\n{MINIMAL_TREE}")).is_named);
    let overrides =
        TreeOverrides { tree_run_id: Some("other".to_owned()), ..TreeOverrides::default() };
    assert!(read(MINIMAL_TREE, overrides).0.expect("a search").is_named);
}

#[test]
fn search_commands_sharing_checkout_need_one_environment() {
    let text = "\
root_baseline_csv: base.csv
environment: {type: process}
commands:
  ideas: {run: a, environment: {type: process, cpus: 2}}
  implement: {run: b, environment: IMPLEMENT}
  tests: {run: c}
  review: {run: d, environment: {type: process, memory_mb: 4096}}
  sweep: {run: e, environment: {docker_image: a, storage_mb: 5}}
";
    let with = |implement: &str| read(&text.replace("IMPLEMENT", implement), Default::default()).1;
    let faults = ["commands.tests", "commands.review.environment"];
    let faults = faults.map(|key| (key.to_owned(), ErrorKind::Conflict));
    assert_eq!(with("{type: process, cpus: 1}"), faults[1..], "1 is what it is anyway");
    assert_eq!(with("{type: process, memory_mb: 4096}"), faults[..1]);
    assert_eq!(with("{docker_image: a}"), faults);
    let tree = read_valid(&text.replace("IMPLEMENT", "{type: process}").replace("4096", "2048"));
    assert_eq!(tree.commands.ideas.environment.resources.cpus, 2);
    assert_eq!(tree.commands.sweep.environment.resources.storage_mb, 5);
    assert_eq!(tree.commands.tests.expect("one").environment, tree.commands.implement.environment);
}

#[test]
fn search_proxies_of_equal_environments_are_equal_and_may_change() {
    let proxy =
        |host: &str| format!("{{type: process, proxy: {{http: 'http://${{SET}}@{host}:1'}}}}");
    let text = MINIMAL_TREE.replace("{type: process}", &proxy("p"));
    let shared = format!("run: implement.sh, environment: {}", proxy("p"));
    let text = text.replace("run: implement.sh", &shared);
    let tests = format!("  tests: {{run: t, environment: {}}}\n", proxy("p"));
    let tree = read_valid(&format!("{text}{tests}"));
    assert_eq!(tree.commands.sweep.environment, tree.commands.implement.environment);
    let document = tree_document(&tree);
    let template = json!({"http": "http://${SET}@p:1"});
    assert_eq!(document["commands"]["tests"]["environment"]["proxy"], template);
    let other = format!("{text}{tests}").replace("@p:1", "@q:2");
    let mut other = tree_document(&read_valid(&other));
    other["tree_run_id"] = document["tree_run_id"].clone();
    assert_ne!(other, document);
    assert_eq!(differences(&document, &other), [""; 0]);
    let (_, faults) = read(&text.replace("${SET}", "${UNSET}"), TreeOverrides::default());
    assert!(faults.iter().all(|(_, kind)| *kind == ErrorKind::UnsetVariable), "{faults:?}");
    assert!(faults.contains(&("environment.proxy.http".to_owned(), ErrorKind::UnsetVariable)));
}

#[test]
fn search_environment_resources_are_parsed_and_compared() {
    let with =
        |figures: &str| MINIMAL_TREE.replace("type: process", &format!("type: process{figures}"));
    let tree = read_valid(&with(", cpus: 4, memory_mb: 8192"));
    let resources = tree.environment.resources;
    let usual = read_valid(MINIMAL_TREE).environment.resources;
    assert_eq!((resources.cpus, resources.memory_mb), (4, 8192));
    assert_eq!((usual.cpus, usual.memory_mb, usual.storage_mb), (1, 2048, 10_240));
    assert_eq!(resources.storage_mb, usual.storage_mb);
    let document = tree_document(&tree);
    assert_eq!(document["environment"]["cpus"], 4);
    assert_eq!(document["commands"]["sweep"]["environment"]["memory_mb"], 8192);
    let mut other = tree_document(&read_valid(&with(", cpus: 4, memory_mb: 4096")));
    other["tree_run_id"] = document["tree_run_id"].clone();
    assert_eq!(differences(&document, &other).len(), 4, "of the file, and of three commands");
    assert_eq!(tree_document(&read_valid(MINIMAL_TREE))["environment"].get("cpus"), None);
    for (figures, key, kind) in [
        (", cpus: 0", "environment.cpus", ErrorKind::BadValue),
        (", memory_mb: 2G", "environment.memory_mb", ErrorKind::WrongType),
        (", memory: 2G", "environment.memory", ErrorKind::UnknownKey),
    ] {
        let (_, faults) = read(&with(figures), TreeOverrides::default());
        assert_eq!(faults, [(key.to_owned(), kind)]);
    }
}

#[test]
fn search_start_grace_is_read_bounded_and_may_change() {
    let with =
        |figure: &str| MINIMAL_TREE.replace("type: process", &format!("type: process{figure}"));
    let tree = read_valid(&with(", start_grace_sec: 2.5"));
    assert_eq!(tree.commands.sweep.environment.start_grace_sec, Some(2.5));
    let document = tree_document(&tree);
    assert_eq!(document["commands"]["ideas"]["environment"]["start_grace_sec"], 2.5);
    let mut without = tree_document(&read_valid(MINIMAL_TREE));
    assert_eq!(without["environment"].get("start_grace_sec"), None);
    without["tree_run_id"] = document["tree_run_id"].clone();
    assert_ne!(without, document);
    assert_eq!(differences(&document, &without), [""; 0]);
    // The sweep alone would leave the environment that it shares.
    let own = "sweep: {run: sweep.sh, environment: {type: process, start_grace_sec: 2}}";
    let mut apart =
        tree_document(&read_valid(&MINIMAL_TREE.replace("sweep: {run: sweep.sh}", own)));
    apart["tree_run_id"] = without["tree_run_id"].clone();
    let line = "commands.sweep.environment: whether it is that of `implement` has changed";
    assert_eq!(differences(&without, &apart), [line]);
    assert_eq!(differences(&apart, &without), [line]);
    for figure in ["-1", "3601"] {
        let text = with(&format!(", start_grace_sec: {figure}"));
        let (_, faults) = read(&text, TreeOverrides::default());
        assert_eq!(faults, [("environment.start_grace_sec".to_owned(), ErrorKind::BadValue)]);
    }
}

#[test]
fn search_retry_max_park_sec_is_read_and_bounded() {
    assert_eq!(read_valid(MINIMAL_TREE).max_park_sec, 900);
    for sec in [0, 60, 604_800] {
        let tree = read_valid(&format!("{MINIMAL_TREE}retry: {{max_park_sec: {sec}}}\n"));
        assert_eq!(tree.max_park_sec, sec);
        assert_eq!(tree_document(&tree)["retry"]["max_park_sec"], sec);
    }
    for (text, key, kind) in [
        ("{max_park_sec: -1}", "retry.max_park_sec", ErrorKind::BadValue),
        ("{max_park_sec: 604801}", "retry.max_park_sec", ErrorKind::BadValue),
        ("{max_park_sec: soon}", "retry.max_park_sec", ErrorKind::WrongType),
        ("{max_attempts: 2}", "retry.max_attempts", ErrorKind::UnknownKey),
    ] {
        let (_, faults) = read(&format!("{MINIMAL_TREE}retry: {text}\n"), TreeOverrides::default());
        assert_eq!(faults, [(key.to_owned(), kind)], "{text}");
    }
}
