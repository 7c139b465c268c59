//! A run on a terminal of 80 columns: the screen that its user sees.

use rollout_protocol::exit::ExitCode;
use rollout_tests::screen::Screen;
use rollout_tests::terminal::Terminal;
use rollout_tests::wait;

use crate::e2e::{DEADLINE, assert_nothing_left, project};

const COLUMNS: u16 = 80;

/// Output until the program ends, which it does with this code.
#[track_caller]
fn output_until_end(terminal: &mut Terminal, mut output: Vec<u8>, code: ExitCode) -> Vec<u8> {
    let mut ended = None;
    wait::until(DEADLINE, "the program in the terminal to end", || {
        ended = terminal.ended();
        output.extend(terminal.shown());
        ended.is_some()
    });
    let shown = String::from_utf8_lossy(&output);
    assert_eq!(ended, Some(code.code().into()), "{shown}");
    output
}

/// Fails unless these texts are shown with line breaks between words only.
#[track_caller]
fn assert_wrapped_between_words(lines: &[String], texts: &[&str]) {
    let joined = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    for text in texts {
        assert!(joined.contains(text), "{text}: {lines:#?}");
    }
}

#[test]
fn interrupted_run_leaves_no_bar_and_whole_words_on_terminal() {
    let values = [("PROVIDER", "process"), ("ATTEMPTS", "6")];
    let project = project().tasks(["slow/second"], &[]).job("slow.yaml", &values);
    let mut terminal = Terminal::with_columns(&project.command(&["run", "job.yaml"]), COLUMNS);
    let mut output = Vec::new();
    wait::until(DEADLINE, "a bar with a running trial", || {
        output.extend(terminal.shown());
        let screen = Screen::after(&output, COLUMNS.into());
        screen.lines().iter().any(|line| line.contains("completed, 2 running"))
    });
    terminal.type_text("\u{3}");
    let output = output_until_end(&mut terminal, output, ExitCode::Cancelled);
    let lines = Screen::after(&output, COLUMNS.into()).lines();
    assert!(!lines.iter().any(|line| line.contains(['█', '░'])), "{lines:#?}");
    let stopping = "stopping: running trials finish their phase, the rest stays pending; a second \
                    Ctrl-C or SIGTERM kills them at once";
    assert_wrapped_between_words(&lines, &[stopping]);
    assert_nothing_left(&project);
}

#[test]
fn failures_and_tables_fit_terminal_between_words() {
    let project = project().tasks(["faults/passes", "faults/verifier-failed"], &[]);
    let project = project.job("faults.yaml", &[("PROVIDER", "process")]);
    let mut terminal = Terminal::with_columns(&project.command(&["run", "job.yaml"]), COLUMNS);
    let output = output_until_end(&mut terminal, Vec::new(), ExitCode::Success);
    let lines = Screen::after(&output, COLUMNS.into()).lines();
    assert_wrapped_between_words(&lines, &["the test script ended with code 3"]);
    for arguments in [&["show", "jobs/faults"][..], &["show", "jobs/faults", "verifier-failed"]] {
        let mut terminal = Terminal::with_columns(&project.command(arguments), COLUMNS);
        let output = output_until_end(&mut terminal, Vec::new(), ExitCode::Success);
        let lines = Screen::after(&output, COLUMNS.into()).lines();
        assert_wrapped_between_words(&lines, &["verifier_failed"]);
    }
    assert_nothing_left(&project);
}

#[test]
fn findings_of_check_fit_terminal_between_words() {
    let project = project().tasks(["faults/passes", "faults/verifier-failed"], &[]);
    let mut terminal = Terminal::with_columns(&project.command(&["check", "tasks"]), COLUMNS);
    let output = output_until_end(&mut terminal, Vec::new(), ExitCode::Success);
    let lines = Screen::after(&output, COLUMNS.into()).lines();
    let guess =
        "verifier-failed: format rollout, guessed: no key, file or command is specific to Harbor";
    assert_wrapped_between_words(&lines, &[guess]);
    assert_nothing_left(&project);
}
