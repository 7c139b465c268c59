//! Tests of scripts that were written on Windows.

use super::*;

const WINDOWS: &str = "#!/bin/bash\r\necho 1 > /logs/verifier/reward.txt\r\n";

#[tokio::test]
async fn script_written_on_windows_fails_its_task_and_is_named() {
    for (script, settings, of_task, of_solution) in [
        ("tests/test.sh", "", true, false),
        ("solution/solve.sh", "", false, true),
        ("tests/test.sh", "verifier: {disable: true}\n", false, false),
    ] {
        let project = DatasetProject::new(&format!("{settings}{}", job("{path: ./set}")));
        project.task("set/a");
        project.task("set/b");
        project.write(&format!("set/a/{script}"), WINDOWS);
        let (_, datasets, warnings) = project.load(false).expect("no faults of the run");
        let task = &datasets[0].tasks[0];
        let named = |fault: &Option<TrialError>| {
            let message = fault.as_ref().map(|fault| fault.message.clone());
            message.is_some_and(|message| message.contains(&format!("{script} has lines that end")))
        };
        assert_eq!((named(&task.fault), named(&task.solution_fault)), (of_task, of_solution));
        assert_eq!(warnings, usize::from(of_task || of_solution), "{script}");
        assert_eq!(
            (&datasets[0].tasks[1].fault, &datasets[0].tasks[1].solution_fault),
            (&None, &None)
        );
        let spec = &project.bundle("scratch").await[0].spec;
        assert_eq!((spec.fault.is_some(), spec.solution_fault.is_some()), (of_task, of_solution));
        if of_task || of_solution {
            let file = format!("set/a/{script}");
            assert_eq!(project.faults(true), expected(&[(file.as_str(), "", ErrorKind::BadFile)]));
        }
    }
}

#[test]
fn windows_line_ends_further_on_are_no_fault() {
    for (text, expected) in [
        (WINDOWS, true),
        ("true\r\n", true),
        ("# what\r\n\r\ntrue\r\n", true),
        ("#!/bin/bash\r\n# why\n\ntrue\n", false),
        ("#!/bin/bash\r\n", false),
        ("#!/bin/bash\nprintf 'GET / HTTP/1.1\r\n'\n", false),
        ("#!/bin/bash\ncat <<E\na\r\nE\n", false),
        ("true\r", false),
        ("", false),
    ] {
        assert_eq!(has_windows_line_ends(text.as_bytes()), expected, "{text:?}");
    }
}
