//! The kernel's log: whether the kernel has complained since a mark.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use crate::skip;

/// Search words for the kernel's messages about bad packets, or about faults of its own.
const COMPLAINTS: [&str; 9] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "Call Trace",
    "bad gso",
    "csum failure",
    "checksum",
    "skb_warn_bad_offload",
    "refcount",
];

/// The kernel's log from a mark on.
#[derive(Debug)]
pub struct KernelLog {
    log: File,
}

impl KernelLog {
    /// Opens the log at its end; `None` if it is unreadable, which is noted under `name`.
    pub fn mark(name: &str) -> Option<KernelLog> {
        let opened =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").and_then(|mut log| {
                log.seek(SeekFrom::End(0))?;
                Ok(KernelLog { log })
            });
        match opened {
            Ok(log) => Some(log),
            Err(error) => {
                skip(name, &format!("the kernel log cannot be read: {error}"));
                None
            }
        }
    }

    /// Checks that the kernel has not complained since the mark, or since the last call.
    #[track_caller]
    pub fn assert_silent(&mut self, what: &str) {
        let (mut found, mut record) = (Vec::new(), [0; 8192]);
        loop {
            match self.log.read(&mut record) {
                Ok(len) => {
                    let text = String::from_utf8_lossy(&record[..len]).into_owned();
                    found.extend(Some(text).filter(|text| is_complaint(text)));
                }
                // EPIPE: records were overwritten before they were read; the next one is there.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("the kernel log: {error}"),
            }
        }
        assert!(found.is_empty(), "{what}: the kernel says: {}", found.concat());
    }
}

/// Returns whether a record is a complaint.
pub fn is_complaint(record: &str) -> bool {
    COMPLAINTS.iter().any(|words| record.contains(words))
}
