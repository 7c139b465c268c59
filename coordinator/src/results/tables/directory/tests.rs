use std::collections::BTreeMap;

use rollout_protocol::record::{Settlement, Verdict};
use rollout_protocol::spec::trial::TrialName;
use serde_json::json;

use super::*;
use crate::plan::PlanDocument;
use crate::results::tables::tests::plan;
use crate::results::testing::{self, passed, settlement, trial};

const TABLES: [&str; 8] = [
    "agent_summary",
    "comparisons",
    "event_counts_by_agent",
    "event_counts_by_trial",
    "guardrails",
    "metrics_long",
    "trials",
    "tries",
];

/// A run directory with settlements in two records files, in the order in which they settled.
fn run_dir(records: [&[Settlement]; 2]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = json!(PlanDocument::from(&plan()));
    fs::write(dir.path().join("plan.json"), plan.to_string()).expect("written");
    fs::create_dir(dir.path().join("records")).expect("a directory");
    for (settlements, number) in records.into_iter().zip(1..) {
        let lines: String = settlements.iter().map(|s| json!(s).to_string() + "\n").collect();
        let path = dir.path().join(format!("records/{number:06}.jsonl"));
        fs::write(path, lines).expect("written");
    }
    dir
}

fn settlements() -> Vec<Settlement> {
    let settled =
        |agent, task, attempt, verdict| settlement(trial(agent, task, attempt), 1, verdict);
    let never_ran = settled("base", "two", 2, Verdict::cancelled(0.0));
    vec![
        settled("bad", "two", 1, passed(0.0)),
        Settlement { by: None, ..never_ran },
        settled("base", "one", 1, passed(0.5)),
        settled("good", "one", 1, passed(1.0)),
    ]
}

/// Writes the tables of a run directory.
fn write(run_dir: &Path, out: &Path) -> Result<WrittenTables, TablesError> {
    write_directory(&SettledTrials::open(run_dir)?, testing::run(), out)
}

fn complete_run() -> tempfile::TempDir {
    let settled = settlements();
    run_dir([&settled[..3], &settled[3..]])
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> =
        entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let content = |name: String| {
        let content = fs::read(directory.join(&name)).expect("a file");
        (name, content)
    };
    names(directory).into_iter().map(content).collect()
}

/// The names of all files of the tables.
fn files() -> Vec<String> {
    let extensions: &[&str] =
        if cfg!(feature = "parquet") { &["jsonl", "parquet"] } else { &["jsonl"] };
    let of_table = |table| extensions.iter().map(move |extension| format!("{table}.{extension}"));
    TABLES.into_iter().flat_map(of_table).collect()
}

#[test]
fn tables_directory_has_all_tables_in_plan_order() {
    let run = complete_run();
    let out = run.path().join("new/tables");
    let written = write(run.path(), &out).expect("written");
    assert_eq!(written, WrittenTables { trials: 4, unplanned: 0 });
    assert_eq!(names(&out), files());
    let lines = fs::read_to_string(out.join("trials.jsonl")).expect("a file");
    let ordinal =
        |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["ordinal"].clone();
    assert_eq!(lines.lines().map(ordinal).collect::<Vec<_>>(), [0, 3, 4, 10]);
    assert_eq!(names(&run.path().join("new")), ["tables"]);
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_tables_equal_json_lines() {
    fn rows<T: Table>(out: &Path) -> usize {
        let path = |extension: &str| out.join(format!("{}.{extension}", T::NAME));
        testing::assert_same_rows::<T>(&path("jsonl"), &path("parquet"))
    }
    let run = complete_run();
    let out = run.path().join("tables");
    write(run.path(), &out).expect("written");
    assert_eq!((rows::<Trials>(&out), rows::<Tries>(&out)), (4, 3));
    assert_eq!(rows::<MetricsLong>(&out), 3 * 4 + 1);
    assert_eq!((rows::<AgentSummaries>(&out), rows::<Comparisons>(&out)), (3, 2));
    // Files without a row have the columns.
    assert_eq!((rows::<EventCountsByTrial>(&out), rows::<EventCountsByAgent>(&out)), (0, 0));

    let verdict = testing::with_harness(passed(1.0), testing::harness_summary("loss", 0.5));
    let run = run_dir([&[settlement(trial("good", "one", 1), 1, verdict)], &[]]);
    let out = run.path().join("tables");
    write(run.path(), &out).expect("written");
    assert_eq!((rows::<Trials>(&out), rows::<MetricsLong>(&out)), (1, 8));
    assert_eq!((rows::<EventCountsByTrial>(&out), rows::<EventCountsByAgent>(&out)), (2, 2));
    assert_eq!(rows::<AgentSummaries>(&out), 3);
}

#[test]
fn tables_of_run_equal_exported_ones_and_are_replaced() {
    let run = complete_run();
    let (inside, out) = (run.path().join("tables"), run.path().join("out"));
    write(run.path(), &out).expect("written");
    for _session in 0..2 {
        write_to_run(run.path(), testing::run(), 4).expect("written");
        assert_eq!(contents(&inside), contents(&out));
        fs::write(inside.join("trials.jsonl"), "old").expect("written");
    }
    remove_from_run(run.path()).expect("removed");
    assert!(!inside.exists());
    remove_from_run(run.path()).expect("nothing to remove");
}

#[test]
fn tables_are_not_written_to_run_with_incomplete_records() {
    let run = complete_run();
    let refused = write_to_run(run.path(), testing::run(), 5);
    assert!(matches!(refused, Err(TablesError::Incomplete { found: 4, expected: 5 })));
    assert!(!run.path().join("tables").exists());
    fs::remove_file(run.path().join("plan.json")).expect("removed");
    write_to_run(run.path(), testing::run(), 5).expect("no plan, no tables");
    assert!(!run.path().join("tables").exists());
}

#[test]
fn tables_are_not_exported_over_other_files() {
    let run = complete_run();
    let out = run.path().join("out");
    fs::create_dir(&out).expect("a directory");
    write(run.path(), &out).expect("an empty directory is replaced");
    let before = contents(&out);
    for occupied in [out.clone(), run.path().join("plan.json")] {
        let refused = write(run.path(), &occupied);
        assert!(matches!(refused, Err(TablesError::NotEmpty(_))), "{refused:?}");
    }
    assert_eq!(contents(&out), before);
}

#[test]
fn tables_of_damaged_records_leave_nothing_behind() {
    let run = complete_run();
    let path = run.path().join("records/000002.jsonl");
    let text = fs::read_to_string(&path).expect("a file");
    // Complete JSON, so that only reading the whole settlement finds the damage.
    let damaged = text.replace("\"settled_at\":", "\"settled_xx\":");
    assert_ne!(text, damaged);
    fs::write(path, damaged).expect("written");
    let before = names(run.path());
    let failed = write(run.path(), &run.path().join("out"));
    let Err(TablesError::Settlements(SettlementsError::Document { path, .. })) = &failed else {
        panic!("{failed:?}");
    };
    assert!(path.ends_with("records/000002.jsonl"), "{failed:?}");
    assert_eq!(names(run.path()), before);
}

#[test]
fn tables_have_the_latest_settlement_and_no_unplanned_trial() {
    let [first, later] =
        [0.0, 1.0].map(|reward| settlement(trial("base", "one", 1), 1, passed(reward)));
    let gone = TrialName { attempt: 3, ..trial("base", "one", 1) };
    let run = run_dir([&[first, settlement(gone, 2, passed(1.0))], &[later]]);
    let out = run.path().join("out");
    let written = write(run.path(), &out).expect("written");
    assert_eq!(written, WrittenTables { trials: 1, unplanned: 1 });
    let lines = fs::read_to_string(out.join("trials.jsonl")).expect("a file");
    assert_eq!((lines.lines().count(), lines.contains("\"reward\":1.0")), (1, true), "{lines}");
}

/// Columns of each table in `docs/formats.md`: the first cells of the rows below its heading.
#[test]
fn columns_of_tables_are_documented_in_order() {
    fn columns<T: Table>() -> (&'static str, Vec<&'static str>) {
        (T::NAME, T::COLUMNS.iter().map(|column| column.name).collect())
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/formats.md");
    let page = fs::read_to_string(page).expect("the page");
    let all = [
        columns::<Trials>(),
        columns::<Tries>(),
        columns::<MetricsLong>(),
        columns::<EventCountsByTrial>(),
        columns::<EventCountsByAgent>(),
        columns::<AgentSummaries>(),
        columns::<Comparisons>(),
        columns::<Guardrails>(),
    ];
    for (table, columns) in all {
        let heading = format!("#### `{table}`\n");
        let section = page.split_once(&heading).unwrap_or_else(|| panic!("no section {table}")).1;
        let section = section.split("\n#").next().unwrap_or_default();
        let first_cells =
            section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let documented: Vec<_> = first_cells
            .flat_map(|cell| cell.split(", "))
            .map(|name| name.trim_matches('`'))
            .collect();
        assert_eq!(documented, columns, "{table}");
    }
}
