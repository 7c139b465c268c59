//! Tests of the names of tasks.

use super::*;

#[test]
fn task_name_up_to_240_bytes_is_loaded() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    let longest = "x".repeat(240);
    project.task(&format!("set/{longest}"));
    let (_, datasets, _) = project.load(true).expect("no faults");
    assert_eq!(datasets[0].tasks[0].name, longest);
    project.task(&format!("set/{longest}x"));
    let fault = (format!("set/{longest}x"), String::new(), ErrorKind::BadValue);
    assert_eq!(project.faults(true), [fault]);
}
