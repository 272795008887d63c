//! The configuration that the processes of a sandbox share.

use segue_control::error::Error;

use super::filter::Allowed;
use super::helper::Helper;
use crate::fault::Vitals;
use crate::heartbeat::Limits;

/// The configuration of a sandbox.
#[derive(Debug)]
pub struct SandboxConfig<'a> {
    /// The name of the instance.
    pub name: &'a str,
    /// The heartbeat of the process that moves packets, and the faults requested for its supervisor.
    pub vitals: &'a Vitals,
    /// The times after which the supervisor ends the process that moves packets.
    pub limits: Limits,
    /// Additional system calls of the process that moves packets.
    pub allowed: Allowed<'a>,
    /// The processes that open devices for the process that moves packets.
    pub helpers: &'a [Helper],
    /// Whether a service starts the instance again where it ends by itself.
    pub is_managed: bool,
    /// Whether the process runs without Landlock or filters of system calls if the kernel lacks them.
    pub is_weak: bool,
}

pub(super) fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::system(what, error, "segue doctor").why("the sandbox could not be made, and without it segue does not start")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use landlock::AccessFs;
    use segue_host::sandbox::{Signalling, restrict};

    #[test]
    fn landlock_takes_the_file_system_away() {
        if segue_host::sys::landlock_abi().is_none() {
            return segue_lab::skip_this_test("this kernel has no Landlock");
        }
        let directory = std::env::temp_dir();
        let keep = directory.join(format!("segue-keep-{}", std::process::id()));
        fs::write(&keep, "x").unwrap();
        let (dir, file) = (directory.clone(), keep.clone());
        // Landlock applies to the calling thread and those that it starts.
        std::thread::spawn(move || {
            assert!(restrict(&[(dir.clone(), AccessFs::RemoveFile.into())], &[], Signalling::Inside).unwrap());
            assert_eq!(fs::read("/etc/passwd").unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            assert!(fs::File::create(dir.join("segue-new")).is_err());
            assert!(std::net::TcpStream::connect("127.0.0.1:9").is_err());
            fs::remove_file(&file).expect("removing is allowed in the socket's directory");
        })
        .join()
        .unwrap();
        assert!(!keep.exists());
    }
}
