//! Captures of the frames that a host sends, and their check by tshark.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use segue_lab::{DEVICE, Host, Process};

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Makes a fresh directory, which every user may enter and only this one changes, whatever the mask.
    pub fn new() -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("segue-tests-{}-{number}", std::process::id()));
        let made = fs::create_dir(&path).and_then(|()| fs::set_permissions(&path, PermissionsExt::from_mode(0o755)));
        made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Directory(path)
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for Directory {
    fn default() -> Self {
        Directory::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running tcpdump of the frames that a host sends over its link. On a link whose segmentation and checksum offloads
/// are off these frames are final.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    path: PathBuf,
}

impl Capture {
    /// Starts tcpdump and waits until it captures.
    #[track_caller]
    pub fn start(host: &Host, path: PathBuf) -> Capture {
        let mut command = host.command("tcpdump");
        // A large buffer in immediate mode (else the last second is lost at the end) has room for many frames, as the
        // snap length is that of this link's frames; `frames` refuses a cut one. tcpdump stays root, as another user
        // could not write the file.
        command.args(["-i", DEVICE, "-Q", "out", "-s", "2048", "-B", "65536", "--immediate-mode", "-n", "-U"]);
        command.args(["-Z", "root", "-w"]).arg(&path);
        let mut process = Process::spawn(command, b"").expect("tcpdump starts");
        let begin = std::time::Instant::now();
        while !process.stderr().contains("listening on") {
            assert!(process.ended().is_none() && begin.elapsed() < Duration::from_secs(60), "{}", process.last_words());
            std::thread::sleep(Duration::from_millis(5));
        }
        Capture { process, path }
    }

    /// Stops tcpdump and returns the file's path. Panics when tcpdump has missed a frame.
    #[track_caller]
    pub fn stop(mut self) -> PathBuf {
        // What is on its way to the file has to get there.
        let len = || fs::metadata(&self.path).map_or(0, |data| data.len());
        let mut before = None;
        while before != Some(len()) {
            before = Some(len());
            std::thread::sleep(Duration::from_millis(300));
        }
        self.process.stop(Duration::from_secs(30));
        let words = self.process.last_words();
        assert!(words.contains("\n0 packets dropped by kernel"), "tcpdump: {words}");
        self.path.clone()
    }
}

/// Returns the frames of a pcap file (not pcapng) with Ethernet headers; an error if one was truncated.
pub fn frames(file: &[u8]) -> Result<Vec<&[u8]>, String> {
    let (header, mut rest) = file.split_at_checked(24).ok_or("no pcap header")?;
    let little = match header[..4] {
        // Microseconds, nanoseconds; either byte order.
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => true,
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => false,
        _ => return Err("not a pcap file".into()),
    };
    let word = |bytes: &[u8]| {
        let bytes: [u8; 4] = bytes.try_into().expect("four bytes");
        if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    };
    if word(&header[20..24]) != 1 {
        return Err("no Ethernet headers".into());
    }
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (record, more) = rest.split_at_checked(16).ok_or("a record is cut off")?;
        let (captured, len) = (word(&record[8..12]), word(&record[12..16]));
        if captured != len {
            return Err(format!("{captured} of {len} bytes captured"));
        }
        let (frame, more) = more.split_at_checked(len as usize).ok_or("a frame is cut off")?;
        frames.push(frame);
        rest = more;
    }
    Ok(frames)
}

/// Verifies the outer UDP checksums of the datagrams to one port by tshark; returns the number of good ones, and
/// tshark's output for each bad one. Checksums of the outer IPv4 header count too.
#[track_caller]
pub fn tshark_checksums(path: &Path, port: u16) -> (usize, Vec<String>) {
    let mut command = Command::new(segue_lab::which("tshark").expect("tshark"));
    command.args(["-n", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-r"]).arg(path);
    // Should tshark find another protocol in the payload, only the outermost headers are looked at.
    command.args(["-Y", &format!("udp.dstport == {port}"), "-T", "fields", "-E", "occurrence=f"]);
    command.args(["-e", "frame.number", "-e", "udp.checksum.status", "-e", "ip.checksum.status", "-e", "ip.version"]);
    let output = command.output().expect("tshark starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {words}");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut good = 0;
    let mut rest = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            // 1 is "Good"; a frame without IPv4 has no value.
            [_, "1" | "Good", "1" | "Good" | "", _] => good += 1,
            _ => rest.push(line.to_string()),
        }
    }
    (good, rest)
}
