//! Processes of this machine, including those in containers and sandboxes.

use std::fs;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id.
    pub pid: u32,
    /// Process id of its parent.
    pub parent: u32,
    /// Arguments, separated by spaces.
    pub arguments: String,
}

/// Every process that is not a zombie.
pub fn all() -> Vec<ProcessInfo> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Processes with `mark` in their arguments or their environment.
pub fn with_mark(mark: &str) -> Vec<ProcessInfo> {
    let in_environment = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    let own = std::process::id();
    all()
        .into_iter()
        .filter(|process| process.pid != own)
        .filter(|process| process.arguments.contains(mark) || in_environment(process.pid))
        .collect()
}

/// Every descendant of `ancestor`, without `ancestor` itself.
pub fn descendants(ancestor: u32) -> Vec<ProcessInfo> {
    let all = all();
    let mut found: Vec<ProcessInfo> = Vec::new();
    let mut ancestors = vec![ancestor];
    while let Some(parent) = ancestors.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            ancestors.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// A value of a process's memory in KiB: `VmRSS` for what it has, `VmHWM` for its peak.
///
/// # Panics
/// When the process does not run.
pub fn memory_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    let number = line.trim_start_matches(':').trim().trim_end_matches("kB").trim();
    number.parse().expect("a number")
}

fn read(pid: u32) -> Option<ProcessInfo> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything; the fields follow its closing parenthesis.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ").trim_end().to_owned();
    Some(ProcessInfo { pid, parent, arguments })
}
