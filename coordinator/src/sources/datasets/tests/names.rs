//! Tests of the names of tasks.

use rollout_protocol::name;

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

#[tokio::test]
async fn task_name_too_long_fails_its_task_under_a_short_name_and_others_run() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/good");
    let begin = "ä".repeat(120);
    for end in ["x", "y"] {
        project.task(&format!("set/{begin}{end}"));
    }
    let (_, datasets, warnings) = project.load(false).expect("no faults of the run");
    assert_eq!(warnings, 2, "one for each long name");
    let tasks = &datasets[0].tasks;
    assert_eq!((tasks.len(), &*tasks[0].name, &tasks[0].fault), (3, "good", &None));
    for (task, end) in tasks[1..].iter().zip(["x", "y"]) {
        assert_eq!(name::check_task(&task.name), Ok(()), "{}", task.name);
        assert!(task.name.starts_with(&"ä".repeat(100)), "{}", task.name);
        let fault = task.fault.as_ref().expect("a fault");
        assert_eq!(fault.kind, ErrorType::TaskInvalid);
        let why = format!("the name \"{begin}{end}\", which is longer than 240 bytes");
        assert!(fault.message.contains(&why), "{}", fault.message);
    }
    assert_ne!(tasks[1].name, tasks[2].name);
    let bundled = project.bundle("scratch").await;
    assert_eq!(bundled.iter().filter(|task| task.spec.fault.is_some()).count(), 2);
}
