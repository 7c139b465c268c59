//! Commands: users, outputs that scripts open again, processes left behind, memory kills.

use std::collections::BTreeMap;

use rollout_environment::FailureKind;

use super::*;

/// Runs a script as a user; returns its output.
async fn run_as(environment: &dyn Environment, user: &str, script: &str) -> String {
    let command = ExecCommand { user: Some(user.to_owned()), ..shell(script) };
    let captured = Arc::new(Captured::default());
    let exit = environment.exec(command, captured.clone()).await;
    assert_eq!(exit.unwrap_or_else(|f| panic!("{user}: {}", f.chain())).code, 0, "{user}");
    String::from_utf8(captured.bytes(OutputStream::Stdout)).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn command_runs_as_user_of_container() {
    if !ignored::is_root_or_ignored("which can be several users") {
        return;
    }
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let show = "echo $(id -u):$(id -g) $HOME";
    assert_eq!(run_as(environment.as_ref(), "agent", show).await, "1000:1000 /home/agent\n");
    assert_eq!(run_as(environment.as_ref(), "1000", show).await, "1000:1000 /home/agent\n");
    assert_eq!(run_as(environment.as_ref(), "4321", show).await, "4321:0 /\n");
    assert_eq!(run_as(environment.as_ref(), "agent:daemon", show).await, "1000:1 /home/agent\n");
    let errors = "echo noticed > /dev/stderr; echo printed > /dev/stdout";
    assert_eq!(run_as(environment.as_ref(), "root", errors).await, "printed\n");
    // Messages may print it: its parts do not refer to each other in a circle.
    assert!(format!("{environment:?}").contains("Client"));
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_opened_again_by_script_is_kept() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let script = "echo one; echo two > /dev/stdout; echo x | tee /dev/stderr; echo three";
    let (code, out, err) = run(environment.as_ref(), script).await;
    assert_eq!(
        (code, out.as_slice(), err.as_slice()),
        (0, &b"one\ntwo\nx\nthree\n"[..], &b"x\n"[..])
    );
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_that_keeps_output_open_does_not_delay_command() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let server = "(while :; do echo tick; sleep 0.05; done) & echo $! > /tmp/pid; echo started";
    let began = std::time::Instant::now();
    let (code, out, _) = run(environment.as_ref(), server).await;
    assert!(code == 0 && out.starts_with(b"started\n") || out.starts_with(b"tick\n"), "{out:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // It still runs, and its output is no longer read.
    eventually(environment.as_ref(), "kill -0 $(cat /tmp/pid)").await;
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_whose_reader_gets_no_processor_time_is_kept() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    // The readers of the outputs stand still until long after the end of the command.
    let script = "
        for name in oc ec; do
          until [ -s /.rollout/c/*/$name ]; do sleep 0.01; done
          set -- $(cat /.rollout/c/*/$name)
          kill -STOP $1
          readers=\"$readers $1\"
        done
        (sleep 2; kill -CONT $readers) </dev/null >/dev/null 2>&1 &
        seq 1 5000; echo noticed >&2";
    let (code, out, err) = run(environment.as_ref(), script).await;
    assert_eq!((code, out.len(), err.as_slice()), (0, 23_893, &b"noticed\n"[..]));
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_that_has_the_number_of_an_ended_reader_is_not_ended() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    // Nothing tells any more that the reader has ended, and its number is that of another process. As it
    // counts as ended at once, the other output stays open until it has.
    let script = "
        cd /.rollout/c/*
        until [ -s oc ]; do sleep 0.01; done
        read -r reader start <oc
        set -- $(sed 's/.*) //' /proc/$reader/stat)
        kill -STOP $2
        sleep 600 </dev/null >/dev/null 2>&1 &
        echo $! >/tmp/other
        echo \"$! 1\" >oc
        (until grep -q ') Z' /proc/$reader/stat 2>/dev/null; do sleep 0.01; done) </dev/null >/dev/null &
        echo said";
    let (code, out, _) = run(environment.as_ref(), script).await;
    assert_eq!((code, out.as_slice()), (0, &b"said\n"[..]));
    let other = "kill -0 $(cat /tmp/other)";
    let (code, _, err) = run(environment.as_ref(), other).await;
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
    environment.destroy().await.expect("destroyed");
}

/// Puts another `cat` before that of the image. Only readers of outputs write to a file.
async fn replace_readers(environment: &dyn Environment, action: &str) {
    let install = format!(
        "printf '%s\\n' '#!/bin/sh' '[ ! -f /proc/self/fd/1 ] || {action}' \
             'exec /usr/bin/cat \"$@\"' > /tmp/cat
         chmod 755 /tmp/cat; mkdir -p /usr/local/bin; mv /tmp/cat /usr/local/bin/cat"
    );
    assert_eq!(run(environment, &install).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_whose_reader_sleeps_before_it_reads_is_kept() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    replace_readers(environment.as_ref(), "sleep 2").await;
    for rest in ["", "; (while :; do echo tick; sleep 0.05; done) &"] {
        let (code, out, err) =
            run(environment.as_ref(), &format!("seq 1 5000; echo noticed >&2{rest}")).await;
        assert_eq!((code, err.as_slice()), (0, &b"noticed\n"[..]), "{rest}");
        assert!(out.len() >= 23_893 && out.starts_with(b"1\n2\n"), "{rest}: {}", out.len());
    }
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_whose_reader_failed_is_no_success() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    replace_readers(environment.as_ref(), "exit 1").await;
    let failure = failure(environment.as_ref(), "seq 1 5000").await;
    assert!(failure.kind == FailureKind::Service, "{}", failure.chain());
    assert!(failure.chain().contains("the output of `/bin/sh` was lost"), "{}", failure.chain());
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_command_that_killed_its_runner_is_kept() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let script = "seq 1 5000; kill -KILL $PPID; echo noticed >&2";
    let (code, out, _) = run(environment.as_ref(), script).await;
    assert_eq!((code, out.len()), (137, 23_893));
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_that_fills_its_output_does_not_delay_command() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let began = std::time::Instant::now();
    let (code, out, _) =
        run(environment.as_ref(), "echo started; (while :; do echo tick; done) &").await;
    assert!(code == 0 && out.windows(8).any(|part| part == b"started\n"), "{}", out.len());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_signals_its_group_has_its_own_exit_code() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let (code, ..) = run(environment.as_ref(), "trap '' TERM; kill -TERM 0; exit 5").await;
    assert_eq!(code, 5);
    let (code, ..) = run(environment.as_ref(), "kill -KILL 0").await;
    assert_eq!(code, 137);
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_leaves_no_files_of_its_own() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    for _ in 0..3 {
        run(environment.as_ref(), "echo out; echo err >&2").await;
    }
    // The last directory belongs to the command that looks.
    eventually(environment.as_ref(), "test $(ls /.rollout/c | wc -l) = 1").await;
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_trial_reach_commands_and_not_the_api() {
    let fixture = PodFixture::new();
    let env: BTreeMap<_, _> = [("API_KEY".to_owned(), "very-secret".to_owned())].into();
    let made = fixture.provider.create(CreateRequest { env, ..request(IMAGE) }).await;
    let environment = made.unwrap_or_else(|f| panic!("{}", f.chain()));
    let (_, out, _) = run(environment.as_ref(), "echo $API_KEY").await;
    assert_eq!(out, b"very-secret\n");
    let pods = serde_json::to_string(&fixture.double.pods()).expect("JSON");
    assert!(!pods.contains("very-secret") && !pods.contains("API_KEY"), "{pods}");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn container_over_its_memory_limit_ends_command_as_out_of_memory() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let name = environment.id().to_owned();
    let running =
        environment.exec(shell("echo x > /tmp/began; sleep 1000"), Arc::new(Captured::default()));
    let killing = async {
        eventually(environment.as_ref(), "test -f /tmp/began").await;
        fixture.double.faults().out_of_memory(NAMESPACE, &name);
    };
    let (ended, ()) = tokio::join!(running, killing);
    assert_eq!(ended.unwrap_or_else(|f| panic!("{}", f.chain())).code, 137);
    assert!(environment.oom_killed().await);
    environment.kill_processes().await.expect("nothing is left to kill");
    environment.destroy().await.expect("destroyed");
}
