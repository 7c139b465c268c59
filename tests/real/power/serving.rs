//! Servers whose disk loses its power: farms, and events of runs and searches over HTTP.

use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use rollout_tests::http::HttpClient;
use rollout_tests::net::free_port;
use rollout_tests::power_disk::{self, PowerCut, PowerCuts, PowerDisk};
use rollout_tests::project::Project;
use rollout_tests::wait;
use serde_json::Value;

use crate::power::{DEADLINE, PROGRAM, cut_under, each_disk};
use crate::serve::events::next_event;
use crate::serve::farm_kills::Trainer;
use crate::serve::{DaemonProcess, farms, search, submission, submitted};

/// Longest time between two cuts.
const LONGEST: Duration = Duration::from_secs(6);

/// Groups of a trainer.
const GROUPS: usize = 6;

/// A server on a disk.
struct PoweredServer<'a> {
    project: &'a Project,
    disk: &'a mut PowerDisk,
    port: u16,
    options: Vec<String>,
}

impl PoweredServer<'_> {
    fn start(&self) -> DaemonProcess {
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        DaemonProcess::start_on(self.project, self.port, &options)
    }

    /// Cuts the power under a server until `has_ended`, and returns the last one.
    fn cut_all(
        &mut self,
        mut daemon: DaemonProcess,
        cuts: &mut PowerCuts,
        has_ended: impl Fn() -> bool,
    ) -> DaemonProcess {
        for cut in cuts {
            wait::holds_within(cut.after, &has_ended);
            let now = PowerCut { after: Duration::ZERO, ..cut };
            let _killed = cut_under(self.disk, &now, daemon.process);
            daemon = self.start();
        }
        daemon
    }
}

/// Everything that a reader of events got, in order.
#[derive(Debug, Default)]
struct EventReader(Vec<(u64, Value)>);

impl EventReader {
    /// Follows a run to its end, with a new connection whenever the server goes.
    fn follow(mut self, client: &HttpClient, path: &str) -> Self {
        wait::until(DEADLINE, "the run ends", || self.read_connection(client, path));
        self
    }

    /// Reads until a connection ends; returns whether the run has ended.
    fn read_connection(&mut self, client: &HttpClient, path: &str) -> bool {
        let last = self.0.last().map_or(0, |(seq, _)| *seq);
        let headers = [("last-event-id", &*last.to_string())];
        let Some(mut lines) = client.try_open(path, &headers) else { return false };
        if lines.status != 200 {
            return false;
        }
        while let Some((seq, kind, data)) = next_event(&mut lines) {
            if kind == "end" {
                return true;
            }
            self.0.push((seq, data));
        }
        false
    }
}

/// Runs a submission under cuts, and compares the events of a reader that was there all the time with
/// those that a server has at the end.
fn assert_events_are_kept(
    project: &Project,
    disk: &mut PowerDisk,
    cuts: &mut PowerCuts,
    submission: &Value,
) {
    disk.sync();
    let examples = project.path().join("examples").display().to_string();
    let options = ["--allow-path".to_owned(), examples].to_vec();
    let mut server = PoweredServer { project, disk, port: free_port(), options };
    let daemon = server.start();
    let client = daemon.client.clone();
    let id = submitted(&client, submission);
    let path = format!("/v1/runs/{id}/events");
    let (read, daemon) = thread::scope(|scope| {
        let reading = scope.spawn(|| EventReader::default().follow(&client, &path));
        let daemon = server.cut_all(daemon, cuts, || reading.is_finished());
        (reading.join().expect("the reader ends"), daemon)
    });
    let run = client.get(&format!("/v1/runs/{id}")).expect(200).json();
    assert_eq!(run["state"], "completed", "{run:#}");
    let all = EventReader::default().follow(&client, &path);
    let numbers = |reader: &EventReader| reader.0.iter().map(|(seq, _)| *seq).collect::<Vec<_>>();
    assert!(numbers(&all).is_sorted_by(|a, b| a < b), "{:?}", numbers(&all));
    assert_eq!(numbers(&read), numbers(&all), "the reader missed nothing and got nothing twice");
    assert_eq!(read.0, all.0, "no event changed");
    daemon.stop();
}

#[test]
fn events_of_a_run_keep_their_numbers_after_power_cuts() {
    each_disk(LONGEST, |options, cuts| {
        let (project, mut disk) = power_disk::project(PROGRAM, options)?;
        let project = project.tasks(["slow/second"], &[]);
        let submission = submission(&project, 8);
        assert_events_are_kept(&project, &mut disk, cuts, &submission);
        Some(())
    });
}

#[test]
fn events_of_a_search_keep_their_numbers_after_power_cuts() {
    each_disk(LONGEST, |options, cuts| {
        let (project, mut disk) = power_disk::project(PROGRAM, options)?;
        let project = search::example().write(project);
        let submission = search::submission(&project);
        assert_events_are_kept(&project, &mut disk, cuts, &submission);
        Some(())
    });
}

#[test]
fn farm_after_power_cuts_loses_and_repeats_no_completion() {
    each_disk(LONGEST, |options, cuts| {
        let (project, mut disk) = power_disk::project(PROGRAM, options)?;
        let project = farms::with_task(project);
        disk.sync();
        let port = free_port();
        let mut server =
            PoweredServer { project: &project, disk: &mut disk, port, options: Vec::new() };
        let (daemon, read) = (server.start(), AtomicUsize::new(0));
        let trainer = Trainer { client: daemon.client.clone(), read: &read };
        let execute = "sleep 0.3; echo done >answer.txt";
        let (daemon, seen) = thread::scope(|scope| {
            let training = scope.spawn(|| trainer.train(&project, execute, GROUPS).1);
            let daemon = server.cut_all(daemon, cuts, || training.is_finished());
            (daemon, training.join().expect("the trainer ends"))
        });
        seen.assert_complete(GROUPS);
        daemon.stop();
        Some(())
    });
}
