//! All limits of the system, each with its reason.

use std::time::Duration;

/// Longest error message kept in a report: a report must stay small.
pub const ERROR_MESSAGE_BYTES: usize = 1024;

/// Largest serialized report. Everything that does not fit is in the record blob.
pub const REPORT_BYTES: usize = 16 * 1024;

/// Longest text about a failed disk in a heartbeat.
pub const DISK_FAULT_BYTES: usize = 512;

/// Reports of one run that the queue holds unpurged: a coordinator that does not read exerts
/// back-pressure on the workers of its run and on no others.
pub const REPORTS_PER_RUN: usize = 65_536;

/// How long a delivery belongs to a worker that does not extend it: long enough for a
/// garbage-collected or swapping host, short enough that the items of a dead worker do not wait
/// long.
pub const LEASE: Duration = Duration::from_secs(60);

/// How long a worker that cannot reach the queue keeps its executions running, unless its command
/// line says otherwise: longer than the restart of a server or a switch, shorter than a user would
/// wait for a lost host.
pub const MAX_OFFLINE: Duration = Duration::from_secs(30 * 60);

/// How long an execution waits for a service that does not answer, unless the job says otherwise:
/// longer than the restart of a host, shorter than a user would wait for a run that seems to hang.
pub const MAX_PARK: Duration = Duration::from_secs(15 * 60);

/// How long items that no registered worker can run wait for a suitable worker, unless the command
/// line says otherwise: longer than an autoscaler needs to start one.
pub const UNPLACEABLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How long an owner of a run sends no heartbeat before another one may take over: many heartbeats,
/// so that a slow disk or a short outage does not lose the run.
pub const LOCK_STALE: Duration = Duration::from_secs(30);

/// How long a suspicious delivery keeps a slot while its claim is not answered.
pub const CLAIM_SLOT_TIMEOUT: Duration = Duration::from_secs(5);

/// An execution that lasts longer is announced and leaves a result marker: losing it would be
/// expensive.
pub const BRIEF_EXECUTION: Duration = Duration::from_secs(1);

/// Executions of one worker that are finished but not acknowledged. Beyond it the worker takes no
/// more work: a coordinator that does not read must not exhaust the worker's memory.
pub const UNREPORTED_PER_WORKER: usize = 8192;

/// Parsed documents that a worker keeps in memory, in bytes of their text.
pub const DOCUMENT_CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// Largest part of a run's file in one message: with its encoding it fits the default limit of
/// servers, 1 MiB. Readers ask for less if the limit of their server is lower.
pub const RUN_FILE_PART_BYTES: u64 = 512 * 1024;

/// Smallest limit of a NATS server on messages: reports, and heartbeats of workers with hundreds of
/// slots, must fit. Both `64k` and `64KB` in the configuration of a server are enough.
pub const MESSAGE_BYTES: usize = 64_000;

/// Largest claim or command for a coordinator: a thousand names of trials, and no burden for a
/// coordinator that must read what others send.
pub const COORDINATOR_REQUEST_BYTES: u64 = 64 * 1024;

/// Longest id of a group of a farm: a path or a hash with a prefix, and short enough to repeat in
/// every completion.
pub const GROUP_ID_BYTES: usize = 128;

/// Largest request for a group, as JSON: an instruction and the metadata of a prompt. Larger inputs
/// are tasks.
pub const GROUP_REQUEST_BYTES: usize = 256 * 1024;

/// Largest request for a group times its samples, bytes: answers repeat the metadata for each
/// sample. The largest request may have 64 samples.
pub const GROUP_SAMPLES_BYTES: usize = 64 * GROUP_REQUEST_BYTES;

/// Bytes that a farm needs for the groups that it holds, with their samples and the metadata of each,
/// which answers repeat. 65,536 samples may have about 7 KiB each.
pub const FARM_HELD_BYTES: u64 = 512 * 1024 * 1024;

/// The same for all farms of a server.
pub const FARMS_HELD_BYTES: u64 = 4 * FARM_HELD_BYTES;

/// Consumers of a farm: each is one reader of completions, such as training and evaluation.
pub const FARM_CONSUMERS: usize = 64;

/// Groups of a farm that have not ended, unless its settings say otherwise: a few batches of a
/// trainer.
pub const FARM_OPEN_GROUPS: u32 = 4096;

/// Samples of a farm that have not ended, unless its settings say otherwise.
pub const FARM_OPEN_SAMPLES: u32 = 65_536;

/// Samples of a farm without an acknowledgement, unless its settings say otherwise: a trainer that
/// does not read exerts back-pressure before the coordinator's memory is full.
pub const FARM_UNACKNOWLEDGED: u32 = 131_072;

/// Ended groups whose ids a farm remembers, unless its settings say otherwise: at 70 bytes each they
/// fit, and no trainer repeats a request after so many others.
pub const FARM_REMEMBERED_GROUPS: u32 = 1_000_000;

/// Cancelled ids and open groups of a farm, unless its settings say otherwise. A cancelled id is kept
/// for ever, and every open group may be cancelled: with the longest ids, they take about 45 MB.
pub const FARM_CANCELLED_GROUPS: u32 = 262_144;

/// Bytes that the journal of a farm may grow at most before it is compacted, unless its settings say
/// otherwise: a few seconds to read again, and many times the state of a usual farm.
pub const FARM_JOURNAL_BYTES: u64 = 256 * 1024 * 1024;

/// Fewest bytes that the journal of a farm may grow before it is compacted: a compaction names the
/// segments that it replaces, and there may be no more of them between two renewals of the run's lock
/// than it names.
pub const MIN_FARM_JOURNAL_BYTES: u64 = 64 * 1024;

/// Cursors in one acknowledgement, and completions in one answer.
pub const COMPLETIONS_PER_READ: usize = 4096;

/// Metadata of the completions in one answer, bytes of JSON: many are sent at once. One completion may
/// have more.
pub const ANSWER_METADATA_BYTES: u64 = 2 * 1024 * 1024;

/// Largest record, spec or other JSON document read from the blob store.
pub const DOCUMENT_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes of a lock file that are read: it names one process, and anything else may be at its path.
pub const LOCK_FILE_BYTES: u64 = 64 * 1024;

/// Bytes of one captured file that a JSON document of a command includes as text: what is larger
/// is printed without `--json`, in pieces.
pub const INLINE_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Largest CA bundle of environments: the largest file that builders give to the commands of a build.
/// Those of systems have 250 KiB.
pub const CA_BUNDLE_BYTES: u64 = 500 * 1024;

/// Largest configuration file (`job.yaml`, `task.toml`).
pub const CONFIG_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Values of a document of YAML or JSON that a user wrote: the largest jobs have a fifth of them, and
/// each takes a hundred bytes of memory.
pub const DOCUMENT_VALUES: usize = 256 * 1024;

/// Lists and mappings of such a document inside each other.
pub const DOCUMENT_DEPTH: usize = 64;

/// Errors and warnings of a configuration file that are shown; others are counted.
pub const CONFIG_ERRORS: usize = 200;

/// Largest instruction.
pub const INSTRUCTION_BYTES: u64 = 4 * 1024 * 1024;

/// Largest trajectory that a task or job gives to agents.
pub const TRAJECTORY_BYTES: u64 = 8 * 1024 * 1024;

/// Skills that a job gives to an agent.
pub const SKILLS: usize = 100;
/// Entries of such a skill.
pub const SKILL_ENTRIES: u64 = 10_000;
/// Content of such a skill: it is held in memory while a run is planned.
pub const SKILL_BYTES: u64 = 16 * 1024 * 1024;

/// Age below which the collection of unneeded blobs keeps a blob, unless the command line says
/// otherwise: longer than a worker takes from storing a result to having it reported, through an
/// outage over night.
pub const BLOB_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Age from which a blob that is stored again gets a new modification time. Half of [`BLOB_GRACE`]:
/// what was just stored stays at least as long, and frequent content is not written every time.
pub const BLOB_RENEWAL: Duration = Duration::from_secs(12 * 60 * 60);

/// Shortest grace while a run in progress uses the store: its program may be between storing a blob
/// and writing the file that names it.
pub const BLOB_GRACE_IN_PROGRESS: Duration = Duration::from_secs(60 * 60);

/// Captured output of one script and stream: this much of its beginning is kept …
pub const CAPTURE_HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// … and this much of its end, with a marker between them. A flood costs CPU, never disk.
pub const CAPTURE_TAIL_BYTES: u64 = 4 * 1024 * 1024;

/// Output of a running trial that is sent at once to a user who follows it: with every byte escaped
/// it is below the default limit of NATS servers on messages. Readers ask for less if the limit of their
/// server is lower.
pub const LIVE_OUTPUT_BYTES: u64 = 64 * 1024;

/// Verifier output repeated inside `result.json`: the last bytes of each stream.
pub const INLINE_OUTPUT_BYTES: usize = 64 * 1024;

/// Bytes of `/logs` collected from one environment: recordings of an agent of a gibibyte are kept
/// whole, with what is beside them. They are copied in pieces, so this bounds no memory but the disk
/// of the worker, which holds them until they are stored, and the time of reading them. Stores have
/// room: 2 GiB are 256 parts of an S3 upload, which may have 10,000.
pub const LOGS_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// Files and directories of `/logs` collected from one environment: a million tiny files must
/// neither fill the store nor take minutes.
pub const LOGS_ENTRIES: u64 = 20_000;

/// Longest path inside an archive.
pub const ARCHIVE_PATH_BYTES: usize = 1024;

/// Deepest path inside an archive.
pub const ARCHIVE_DEPTH: usize = 64;

/// Largest reward file. A number needs 25 bytes; a larger file is not an honest one.
pub const REWARD_FILE_BYTES: u64 = 4 * 1024;

/// Largest reward file with several numbers: all of [`REWARD_KEYS`] with the longest names fit.
pub const REWARD_JSON_BYTES: u64 = 16 * 1024;

/// Numbers of one verifier. They are part of every report, which must stay below [`REPORT_BYTES`]
/// with the longest names, every character of them escaped.
pub const REWARD_KEYS: usize = 50;

/// Longest name of one of a verifier's numbers.
pub const REWARD_KEY_BYTES: usize = 100;

/// Longest line of a stream of hook events: an event names payloads, it does not contain them.
pub const HOOK_EVENT_BYTES: usize = 64 * 1024;

/// Largest file of hook events: a long run of an agent writes a few hundred bytes for each call.
pub const HOOK_EVENTS_BYTES: u64 = 64 * 1024 * 1024;

/// Hook events that are stored at once while their harness runs: a blob of this size is stored in a
/// fraction of a second, and a reader holds several in memory.
pub const HOOK_EVENT_CHUNK_BYTES: usize = 1024 * 1024;

/// Shortest time between two announcements of hook events of one execution: the cost of live events
/// follows time, not their number.
pub const HOOK_EVENT_CHUNK_INTERVAL: Duration = Duration::from_secs(1);

/// How much longer the time between two announcements gets with each of them: an execution of an
/// hour makes about 750 announcements and one of a day about 4,000, not one for every second. A
/// journal and the readers of a log pay for each of them.
pub const HOOK_EVENT_CHUNK_SLOWDOWN: Duration = Duration::from_millis(10);

/// Violations of a stream of hook events that are kept with their text; the others are counted. The
/// first ones name the cause.
pub const HOOK_VIOLATIONS: usize = 20;

/// Longest text of a violation: it may repeat text of the agent.
pub const HOOK_VIOLATION_BYTES: usize = 256;

/// Largest output document of a harness. It is held in memory while it is checked.
pub const TRIAL_OUTPUT_BYTES: u64 = 4 * 1024 * 1024;

/// Metrics kept of one output document.
pub const HARNESS_METRICS: usize = 64;

/// Guardrails of a job: every document of a run has all of them.
pub const GUARDRAILS: usize = 64;

/// Longest name of a metric or an objective: it becomes the name of a column.
pub const HARNESS_NAME_BYTES: usize = 128;

/// Longest text value of a metric: a metric is a label or a number, not a document.
pub const HARNESS_TEXT_BYTES: usize = 256;

/// Longest error message kept of an output document, like [`ERROR_MESSAGE_BYTES`].
pub const HARNESS_ERROR_BYTES: usize = 1024;

/// Controls that one command of a harness gets while it runs: each of them was requested by hand and
/// is kept in the record.
pub const HARNESS_CONTROLS: usize = 32;

/// Encoded summary of a harness in a report, bytes. With all of [`REWARD_KEYS`] and an error
/// message the report still has at most [`REPORT_BYTES`].
pub const HARNESS_SUMMARY_BYTES: usize = 2 * 1024;

/// Bytes of all artifacts of one execution: they are kept on the worker's disk and in the store.
pub const ARTIFACTS_BYTES: u64 = 1024 * 1024 * 1024;

/// Files and directories of all artifacts of one execution: a build tree with its dependencies has
/// tens of thousands.
pub const ARTIFACTS_ENTRIES: u64 = 100_000;

/// Files and directories of a directory whose changes are computed, excluded ones included. With
/// [`WORKSPACE_NAME_BYTES`] their index takes at most about 35 MB of the worker's memory while the
/// agent runs.
pub const WORKSPACE_ENTRIES: u64 = 100_000;

/// Bytes of all names and link targets in the index of such a directory: a hundred thousand long
/// paths.
pub const WORKSPACE_NAME_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of such a directory. They are read twice and not kept; larger ones are data sets, which
/// can be excluded from the comparison.
pub const WORKSPACE_BYTES: u64 = 8 * 1024 * 1024 * 1024;

/// Bytes of the changed files that are kept of all such directories of an execution. With the list
/// of changes and the patch they stay below [`ARTIFACTS_BYTES`].
pub const WORKSPACE_FILES_BYTES: u64 = 512 * 1024 * 1024;

/// Bytes of earlier text that are kept for patches, of all such directories of an execution: the
/// source of a large project. They are in one file on the worker's disk.
pub const WORKSPACE_TEXT_BYTES: u64 = 64 * 1024 * 1024;

/// Largest text file that a patch describes: the comparison of two holds both in memory, and takes
/// a fraction of a second.
pub const PATCH_FILE_BYTES: u64 = 1024 * 1024;

/// Largest patch of a directory. Larger ones are not read by people.
pub const PATCH_BYTES: u64 = 32 * 1024 * 1024;

/// Task directory parts (environment, solution, tests) packed into a bundle, each.
pub const BUNDLE_BYTES: u64 = 8 * 1024 * 1024 * 1024;

/// Objects of a repository, files of its checkout and its Git LFS files that one fetch for a user of a
/// server may bring, each: large benchmarks fit, and a few fetches do not fill the server's disk.
pub const FETCHED_REPOSITORY_BYTES: u64 = 16 * 1024 * 1024 * 1024;

/// Files of one bundle.
pub const BUNDLE_ENTRIES: u64 = 200_000;

/// A commit's files in an environment: more is a data set, not code.
pub const CHECKOUT_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Files and directories of a checkout, including files that the commands left there.
pub const CHECKOUT_ENTRIES: u64 = 500_000;

/// Largest root commit as a bundle.
pub const ROOT_BUNDLE_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Largest commit of an idea as a bundle: ideas are code.
pub const CANDIDATE_BUNDLE_BYTES: u64 = 256 * 1024 * 1024;

/// Largest file of a commit of an idea.
pub const CANDIDATE_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Largest results of a sweep: a million rows of a few columns.
pub const RESULTS_BYTES: u64 = 64 * 1024 * 1024;

/// Longest message of a commit.
pub const COMMIT_MESSAGE_BYTES: usize = 16 * 1024;

/// Agents of one job: a document that a server checks, and whose agents it stores one by one, stays
/// small.
pub const AGENTS_PER_JOB: usize = 4096;

/// Trials of one run. A row takes about 200 bytes of the coordinator's memory.
pub const TRIALS_PER_RUN: u64 = 10_000_000;

/// Tries of one item, for any reason: the last limit when every other one failed.
pub const TRIES_PER_ITEM: u32 = 20;

/// Deaths after which an item runs alone on its worker: innocent items die next to a deadly one,
/// twice by chance now and then.
pub const DEATHS_BEFORE_SOLO: u32 = 2;

/// Deaths of an item that ran alone after which it is not tried again: after three of them no other
/// item can be the cause.
pub const SOLO_DEATHS: u32 = 3;

/// Deaths of an item, alone or next to others, after which it is not tried again.
pub const MAX_DEATHS: u32 = 10;

/// Planned items that wait for capacity of their size class while later ones of other classes are
/// looked for. A row takes about 200 bytes of the coordinator's memory.
pub const READY_AHEAD: usize = 65_536;

/// Fraction of a lease after which a worker without a heartbeat counts as silent: short enough that
/// the items of a dead worker can run on other workers as soon as they are redelivered, long enough
/// for several heartbeats.
const SILENCE_PART: u32 = 4;

/// A worker does not count as silent before three heartbeats are missing, which are a second apart.
const SILENCE_LEAST: Duration = Duration::from_secs(3);

/// Age from which the heartbeat of a worker proves nothing any more.
pub fn worker_silence(lease: Duration) -> Duration {
    (lease / SILENCE_PART).max(SILENCE_LEAST)
}

/// Size of a request to the model gateway: longer than the largest context of any model with a few
/// images, bytes.
pub const GATEWAY_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// Requests that all tries of a worker may have at the model gateway at once, bytes. More wait, and one
/// run has a part of it at most: agents cannot use up the worker's memory, or that of other runs.
pub const GATEWAY_BYTES: usize = 768 * 1024 * 1024;

/// Requests that one try may have at the model gateway at once, bytes: four of the largest, and less
/// than the part of a run, whose other tries have room, too.
pub const GATEWAY_TRY_BYTES: usize = 256 * 1024 * 1024;

/// Token ids and log probabilities of a call, or tokens of a trajectory, from which they are in the
/// binary file instead of JSON.
pub const GATEWAY_INLINE_TOKENS: usize = 4096;

/// Connections that one try may have to the model gateway at once. An agent with more subagents than
/// that is not known; the limit keeps one agent from taking the connections of others.
pub const GATEWAY_TRY_CONNECTIONS: usize = 512;

/// Size of a reply that the model gateway records, bytes. A longer one is passed on and recorded
/// without its bytes.
pub const GATEWAY_REPLY_BYTES: usize = 64 * 1024 * 1024;

/// Size of a try's calls file from which bodies are recorded without their bytes: some thousand
/// calls with long histories.
pub const GATEWAY_LOG_BYTES: u64 = 1024 * 1024 * 1024;

/// Token ids and messages of a try's calls that are kept in memory for the merge into trajectories;
/// calls beyond it are in no trajectory.
pub const GATEWAY_MERGE_ITEMS: usize = 16 * 1024 * 1024;

/// Text of a trial's trajectory in the interchange format: more than the context windows of a
/// hundred long conversations. Model calls beyond it are left out, and the trajectory says so.
pub const TRAJECTORY_TEXT_BYTES: usize = 64 * 1024 * 1024;

/// Size of the file of that trajectory, bytes: its text may be six times as long in JSON.
pub const TRAJECTORY_FILE_BYTES: u64 = 512 * 1024 * 1024;

/// Size of the files in which an agent notes its own model calls, bytes. Longer ones are not counted.
pub const SESSION_BYTES: u64 = 1024 * 1024 * 1024;

/// Size of a record in them, or of a file that is one document, bytes.
pub const SESSION_RECORD_BYTES: u64 = 16 * 1024 * 1024;

/// Token ids of prompts in that trajectory. Each prompt has those before it: the ids of later ones
/// are in the records of the calls only.
pub const TRAJECTORY_PROMPT_IDS: usize = 1024 * 1024;

/// Longest name of a job, agent or dataset: it becomes a path component.
pub const NAME_BYTES: usize = 100;

/// Longest name of a task: benchmarks name tasks by repository, commit and version. With the number of
/// the attempt it is the name of a directory, for which file systems allow 255 bytes.
pub const TASK_NAME_BYTES: usize = 240;

/// Shortens `text` to at most `max` bytes at a character boundary, marking the cut.
pub fn shorten(mut text: String, max: usize) -> String {
    const MARK: &str = " …";
    if text.len() <= max {
        return text;
    }
    let mut end = max.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(MARK);
    text
}

/// Shortens `text` to at most `max` bytes. Of several lines, the first one stays, which says what failed,
/// and the last ones, where a failed command says why. The cut is marked.
pub fn shorten_lines(text: String, max: usize) -> String {
    const MARK: &str = "\n…\n";
    if text.len() <= max {
        return text;
    }
    let Some((first, rest)) = text.trim_end().split_once('\n') else { return shorten(text, max) };
    let head = shorten(first.to_owned(), max / 2);
    let room = max.saturating_sub(head.len() + MARK.len());
    if rest.len() <= room {
        return format!("{head}\n{rest}");
    }
    let mut from = rest.len() - room;
    while !rest.is_char_boundary(from) {
        from += 1;
    }
    let end = &rest[from..];
    // Of a last line that is longer, its end stays.
    let end = end.split_once('\n').map_or(end, |(_, whole)| whole);
    format!("{head}{MARK}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_silence_is_a_quarter_of_the_lease_and_at_least_three_heartbeats() {
        for (lease, silence) in [(60, 15), (12, 3), (4, 3)] {
            assert_eq!(worker_silence(Duration::from_secs(lease)), Duration::from_secs(silence));
        }
    }

    #[test]
    fn shorten_at_limit_keeps_utf8_characters_whole() {
        assert_eq!(shorten("abc".into(), 3), "abc");
        let cut = shorten("äöü".repeat(10), 11);
        assert!(cut.len() <= 11 && cut.ends_with('…'), "{cut}");
    }

    #[test]
    fn shorten_lines_at_limit_keeps_the_first_line_and_the_last_ones() {
        assert_eq!(shorten_lines("a\nb".into(), 3), "a\nb");
        let text = format!("it failed:\n{}the reason\nthe end\n", "noise\n".repeat(20));
        let cut = shorten_lines(text, 50);
        assert_eq!(cut, "it failed:\n…\nnoise\nnoise\nthe reason\nthe end");
        assert!(cut.len() <= 50, "{cut}");

        let long_end = shorten_lines(format!("it failed:\n{}the end", "ä".repeat(40)), 30);
        assert!(
            long_end.starts_with("it failed:\n…\nä") && long_end.ends_with("äthe end"),
            "{long_end}"
        );
        assert!(long_end.len() <= 30, "{long_end}");

        let long_first = shorten_lines(format!("{}\nthe end", "ö".repeat(40)), 40);
        assert!(long_first.ends_with("ö …\nthe end") && long_first.len() <= 40, "{long_first}");
        let one_line = shorten_lines("ü".repeat(40), 11);
        assert!(one_line.len() <= 11 && one_line.ends_with('…'), "{one_line}");
    }
}
