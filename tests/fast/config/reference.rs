//! The configuration reference in the coordinator's README, compared with the program's output.

use rollout_coordinator::config::{JOB_REFERENCE, TASK_REFERENCE, TREE_REFERENCE};
use rollout_tests::project::repository;

#[test]
fn config_reference_in_readme_has_every_key() {
    let path = repository().join("coordinator/README.md");
    let readme = std::fs::read_to_string(path).expect("the README");
    for (kind, reference) in
        [("job", &JOB_REFERENCE), ("task", &TASK_REFERENCE), ("tree", &TREE_REFERENCE)]
    {
        let begin = format!("<!-- rollout keys {kind} --markdown -->\n");
        let (_, rest) = readme.split_once(&begin).unwrap_or_else(|| panic!("no {begin:?}"));
        let (table, _) = rest.split_once("<!-- end -->").expect("an end");
        let expected = reference.markdown();
        let differs = table.lines().zip(expected.lines()).find(|(there, said)| there != said);
        assert!(table == expected, "put the command's output there; first difference: {differs:?}");
    }
}
