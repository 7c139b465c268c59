//! Visibility: the files, processes, devices and network that a sandbox shows or hides.

use rollout_environment::{Environment, Provider as _};
use rollout_protocol::spec::environment::{ProcessNetwork, ProcessSettings};
use rollout_tests::sandbox::{self, output, run};

use crate::sandbox::SandboxFixture;

#[tokio::test(flavor = "multi_thread")]
async fn host_files_and_processes_are_invisible() {
    let lab = SandboxFixture::new();
    let secret = lab.scratch.path().join("dataset");
    std::fs::write(&secret, "answers").expect("written");
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();

    let top = output(environment, "ls -A /").await;
    for name in top.lines() {
        let expected = "bin dev etc home lib lib32 lib64 libx32 media mnt nix opt proc root run \
                        sbin srv sys tmp usr var";
        assert!(expected.split_whitespace().any(|e| e == name), "/{name} is visible");
    }
    let hidden = [
        secret.to_str().expect("text"),
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/etc/shadow",
        "/etc/ssl/private",
        "/proc/kcore/x",
        "/sys/kernel",
    ];
    for path in hidden {
        let (code, printed) = run(environment, &format!("cat {path} || ls {path}")).await;
        assert_ne!(code, 0, "{path}: {printed}");
    }
    for empty in ["/root", "/tmp", "/home", "/mnt", "/srv", "/run/lock", "/var/lib"] {
        assert_eq!(output(environment, &format!("ls -A {empty}")).await, "", "{empty}");
    }
    // The shell, what it runs, and the supervisor.
    let processes = output(environment, "ls /proc | grep -c '^[0-9]'").await;
    assert!(processes.trim().parse::<u32>().expect("a number") <= 4, "{processes}");
    assert_eq!(output(environment, "hostname; id -u").await, "sandbox\n0\n");
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_files_cannot_be_changed() {
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let attempts = [
        "touch /usr/bin/evil",
        "touch /usr/local/evil",
        "chmod 700 /usr/bin/env",
        "chmod 600 /dev/null",
        "echo x > /etc/alternatives/evil",
        "echo 1 > /proc/sys/kernel/core_uses_pid",
        "echo x > /proc/sysrq-trigger",
        "mount -o remount,rw,bind /usr/bin",
        "umount /proc",
        "mount -t tmpfs none /mnt",
        "mknod /tmp/disk b 8 0",
        "chroot /proc/1/root true",
        "readlink /proc/1/fd/3",
        "cat /proc/1/mem",
        "unshare --user --map-root-user --mount mount -o remount,rw,bind /usr/bin",
        "unshare --user --map-root-user --mount umount /proc/sys",
        "nsenter --target 1 --mount true",
        "exec 3< /proc/1/exe",
    ];
    for attempt in attempts {
        let (code, printed) = run(environment, attempt).await;
        assert_ne!(code, 0, "`{attempt}` worked: {printed}");
        assert_ne!(code, 127, "`{attempt}`: {printed}");
    }
    sandbox.destroy().await.expect("destroyed");
}

/// Capabilities in the line `name` of a process's status.
async fn capabilities(environment: &dyn Environment, process: &str, name: &str) -> u64 {
    let script = format!("sed -n 's/^{name}:[^0-9a-f]*//p' /proc/{process}/status");
    let printed = output(environment, &script).await;
    u64::from_str_radix(printed.trim(), 16).unwrap_or_else(|_| panic!("{name}: `{printed}`"))
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_loader_gains_no_capabilities() {
    const SYS_ADMIN: u64 = 1 << 21;
    const SYS_PTRACE: u64 = 1 << 19;
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let plant = "perl -e 'rename \"/etc\", \"/tmp/etc\"'; rm -f /etc/ld.so.preload; \
                 echo libm.so.6 > /etc/ld.so.preload; cp -a /lib64/. /tmp/lib64; \
                 perl -e 'rename \"/lib64\", \"/tmp/former\" and rename \"/tmp/lib64\", \"/lib64\"'";
    run(environment, plant).await;
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let has = capabilities(environment, "self", name).await;
        assert_eq!(has & (SYS_ADMIN | SYS_PTRACE), 0, "{name}: {has:x}");
    }
    output(environment, "test ! -s /etc/ld.so.preload && test -s /etc/passwd").await;
    output(environment, "test ! -e /tmp/former && test ! -e /tmp/etc").await;
    // The bounding set limits the supervisor's children from their first instruction; they need not
    // drop capabilities themselves.
    assert_eq!(capabilities(environment, "1", "CapBnd").await & (SYS_ADMIN | SYS_PTRACE), 0);
    assert_ne!(capabilities(environment, "1", "CapEff").await & SYS_PTRACE, 0);
    let (code, printed) = run(environment, "mount -o remount,rw,bind /usr/bin").await;
    assert_ne!(code, 0, "{printed}");
    let (code, printed) = run(environment, "touch /usr/bin/evil").await;
    assert_ne!(code, 0, "{printed}");
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_mount_after_start_is_invisible() {
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let mounts = output(sandbox.as_ref(), "cat /proc/self/mountinfo").await;
    let bound: Vec<_> = mounts.lines().filter(|line| line.contains("master:")).collect();
    assert!(bound.is_empty(), "{bound:?}");
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_with_default_settings_is_usable() {
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let signals = format!(
        "grep -q 'SigBlk:.0*$' /proc/self/status && grep -q 'SigIgn:.*[08]{:07x}$' /proc/self/status",
        ignored_here()
    );
    let uses = [
        "echo x > /dev/null && head -c 4 /dev/urandom > /tmp/random",
        "echo x > /dev/shm/a && cat < /dev/shm/a",
        "bash -c 'diff <(echo a) <(echo a)'",
        "mkdir -p /opt/new /app && touch /root/a /opt/new/b /app/c /var/log/d /usr/src/e",
        "echo '127.0.0.9 other' >> /etc/hosts",
        "test \"$HOME\" = /root && cd && test \"$PWD\" = /root",
        "perl -e 'print 1'",
        "script -qec 'tty' /dev/null < /dev/null",
        signals.as_str(),
        "test $(ls /proc/self/fd | wc -l) -le 4",
        "test $(cut -d' ' -f6 /proc/$$/stat) = $$",
    ];
    for script in uses {
        output(environment, script).await;
    }
    let variables = output(environment, "env -u PWD -u SHLVL -u OLDPWD -u _ env | sort").await;
    let path = rollout_process::DEFAULT_PATH;
    assert_eq!(variables, format!("HOME=/root\nPATH={path}\n"));
    sandbox.destroy().await.expect("destroyed");
}

/// Signals up to 28 that this process ignores because its parent does: a shell lets its background
/// jobs ignore some. Without SIGPIPE, which only this process ignores. (The C library ignores its
/// own two, 32 and 33, in every process spawned through it.)
fn ignored_here() -> u64 {
    const BROKEN_PIPE: u64 = 1 << 12;
    let status = std::fs::read_to_string("/proc/self/status").expect("about this process");
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a line");
    let ignored = u64::from_str_radix(line.trim(), 16).expect("a mask");
    ignored & 0x0fff_ffff & !BROKEN_PIPE
}

#[tokio::test(flavor = "multi_thread")]
async fn network_namespace_has_loopback_only() {
    let lab = SandboxFixture::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let settings = ProcessSettings { network: ProcessNetwork::None, ..ProcessSettings::default() };
    let request = sandbox::request(settings, sandbox::AMPLE_RESOURCES);
    let sandbox = lab.provider.create(request).await.expect("created");
    let environment = sandbox.as_ref();
    let connect = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
    let (code, _) = run(environment, &connect).await;
    assert_ne!(code, 0, "the host's loopback is reachable");
    let interfaces = output(environment, "tail -n +3 /proc/net/dev | cut -d: -f1").await;
    assert!(interfaces.split_whitespace().any(|name| name == "lo"), "{interfaces}");
    assert!(!interfaces.contains("eth"), "{interfaces}");
    // The loopback works: the connection is refused, not unreachable.
    let (_, printed) = run(environment, "bash -c 'exec 3<>/dev/tcp/127.0.0.1/1' 2>&1").await;
    assert!(printed.contains("refused"), "{printed}");
    sandbox.destroy().await.expect("destroyed");

    let sandbox = sandbox::create(&lab.provider).await;
    output(sandbox.as_ref(), &connect).await;
    sandbox.destroy().await.expect("destroyed");
}
