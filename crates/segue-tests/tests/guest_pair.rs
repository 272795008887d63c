//! Tests of two guests with Debian's Linux on one Ethernet between two vhost-user ports of `segue gateway`: the hashes
//! of received and sent files are equal, in both directions, over IPv4 and IPv6, with datagrams up to 60,000 bytes; and
//! their trains pass unsplit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use segue_lab::{Host, Process};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat, guest, skip, test_name};

/// Time for two guests without KVM to boot on a busy machine, and for all that they exchange.
const LONGEST: Duration = Duration::from_secs(900);
const UP: Duration = Duration::from_secs(60);
const NAME: &str = "pair";

/// Returns the length of a guest's file in bytes.
fn file_len() -> u64 {
    if segue_testkit::is_set("SEGUE_FULL") { 256 << 20 } else { 2 << 20 }
}

/// Returns how many times, one after the other, a guest sends its file over each family: at full size 1 GiB crosses in
/// each direction.
fn times() -> u64 {
    if segue_testkit::is_set("SEGUE_FULL") { 2 } else { 1 }
}

struct Lab<'a> {
    host: &'a Host,
    cache: &'a Path,
    run: &'a Path,
}

impl Lab<'_> {
    /// Boots the guest `local`, whose interface is at the socket; with `turn` it sends requests to the other guest.
    fn boot(&self, socket: &Path, local: u8, remote: u8, turn: bool) -> Process {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest_pair.sh");
        let mut command = self.host.command("bash");
        command.arg(self.run).arg("--cache").arg(self.cache).arg("--vhost").arg(socket);
        command.args(["--timeout", &LONGEST.as_secs().to_string()]).arg("--script").arg(script);
        let words = [
            ("FILE_LEN", file_len()),
            ("TIMES", times()),
            ("LOCAL", local.into()),
            ("REMOTE", remote.into()),
            ("TURN", turn.into()),
        ];
        for (name, value) in words {
            command.arg("--env").arg(format!("{name}={value}"));
        }
        // Files of two guests and what socat keeps of them are in their memory.
        command.args(["--mem", if file_len() > 64 << 20 { "1024" } else { "384" }]);
        Process::spawn(command, b"").unwrap()
    }
}

#[test]
fn two_guests_exchange_everything_and_their_trains_cross_whole() {
    let (cache, run) = match guest::find() {
        Ok(found) => found,
        Err(why) => return skip(test_name!(), &why),
    };
    let Some(ground) = Ground::apart(test_name!(), &["bash", "cpio", "qemu-system-x86_64"]) else { return };
    let directory = Directory::new();
    let [left, right]: [PathBuf; 2] = ["left.sock", "right.sock"].map(|name| directory.file(name));
    let mut command = ground.a.command(&ground.program);
    command.args(["gateway", "-j", "--name", NAME]);
    command.args([&left, &right].map(|path| format!("vhost:{}", path.display())));
    let mut gateway = Process::spawn(command, b"").unwrap();
    let up = gateway.wait_for_line("\"event\":\"up\"", UP);
    up.unwrap_or_else(|error| panic!("{error}\n{}", gateway.last_words()));
    let lab = Lab { host: &ground.a, cache: &cache, run: &run };
    let mut quiet = lab.boot(&right, 2, 1, false);
    let mut asking = lab.boot(&left, 1, 2, true);
    let ended = asking.wait(LONGEST).unwrap_or_else(|error| panic!("{error}\n{}", asking.last_words()));
    assert_eq!(ended.code(), Some(0), "{}\n{}", asking.stdout(), asking.stderr());
    for peer in ["198.18.0.2", "2001:db8::2"] {
        let line = format!("@ done {peer}");
        assert!(asking.stdout().lines().any(|said| said.trim_end() == line), "{}", asking.stdout());
    }
    let stat = Stat::read(&ground.a, &ground.program, NAME);
    for (port, other) in [("left", "right"), ("right", "left")] {
        // A train of 64 kB has more than 40 segments of the files; those of the guests' own packets are far fewer.
        let (trains, segments) = (stat.count(port, "receive", "trains"), stat.count(port, "receive", "segments"));
        let least = 2 * times() * file_len() / 1500;
        assert!(trains > 0 && segments > least, "{port}: {trains} trains, {segments} segments");
        assert_eq!(stat.count(other, "gso", "trains_cut"), 0, "{}", stat.json());
        assert!(stat.count(other, "gso", "trains_whole") > 0);
        assert!(stat.count(other, "numbers", "merged_packets") > 0);
    }
    // Files are not summed; what a guest sends without a partial checksum may be.
    assert!(stat.checksummed_bytes() < file_len() / 10, "{} bytes were summed", stat.checksummed_bytes());
    quiet.terminate();
    gateway.terminate();
    assert_eq!(gateway.wait(UP).unwrap().code(), Some(0), "{}", gateway.last_words());
}
