//! The socket at which a front end connects: a file with the mode and the owner that the administrator chose.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::place::NOT_FOR_CONTROL;
use segue_host::sys::{euid, place_of_file, with_umask};

use super::spec::Spec;
use crate::report::Report;

/// Default permissions of a socket, which only its owner may use.
const MODE: u32 = 0o600;
/// Longest wait for the end of an earlier instance at the socket.
const ENDING: Duration = Duration::from_secs(3);

/// Creates and binds the listening socket. A file that an ended instance has left is replaced. The process must have
/// one thread, since the file mode mask is changed for a moment.
pub(super) fn bind(spec: &Spec, out: &dyn Report) -> Result<UnixListener, Error> {
    let (path, shown) = (&spec.path, spec.path.display());
    let failed = |what: &str, error: &io::Error| {
        let made = Error::system(format!("cannot {what} the socket {shown}"), error, "");
        match error.kind() {
            ErrorKind::NotFound => {
                let folder = path.parent().unwrap_or(Path::new("/")).display();
                made.kind(Kind::NotFound).why("its directory is missing").hint(format!("sudo mkdir -p {folder}"))
            }
            ErrorKind::PermissionDenied => made
                .kind(Kind::NoPermission)
                .why("this user may not write to its directory, or may not give a file to another user")
                .hint("a directory of this user: vhost:$XDG_RUNTIME_DIR/vm1.sock"),
            ErrorKind::AlreadyExists => made
                .kind(Kind::InUse)
                .why("another process has put a file in its place, whose permissions and owner are not changed")
                .hint(format!("ls -l {shown}")),
            _ => made.why("the kernel refused").hint("segue doctor"),
        }
    };
    let owner = spec.owner.as_deref().map(ids).transpose()?;
    let begin = Instant::now();
    let found = loop {
        match free(path) {
            // An instance that was killed takes a moment to end.
            Err(error) if error.kind == Kind::InUse && begin.elapsed() < ENDING => thread::sleep(ENDING / 30),
            found => break found?,
        }
    };
    if found == Found::Left {
        fs::remove_file(path).map_err(|error| failed("replace", &error))?;
    }
    out.change(&format!("listen at {shown}"), "bind");
    let listener = listen(path, spec.mode.unwrap_or(MODE)).map_err(|error| failed("make", &error))?;
    if let Some(owner) = owner {
        set_owner(path, owner).map_err(|error| failed("set the owner of", &error))?;
    }
    Ok(listener)
}

/// Returns a listening socket whose file has the given permissions from its beginning, and the mark of a socket that is
/// not for control. Where the default ACL of its directory takes some of them (acl(5)), they are set afterwards.
fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let listener = with_umask(!mode & 0o777, || UnixListener::bind(path))?;
    set_mode(path, mode | NOT_FOR_CONTROL)?;
    Ok(listener)
}

/// Sets the permissions of a socket of this process's user that has others.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    if place_of_file(path)?.metadata()?.mode() & 0o7777 == mode {
        return Ok(());
    }
    let file = own_socket(path)?;
    fs::set_permissions(name_of(&file), Permissions::from_mode(mode))
}

/// Gives a socket of this process's user to another user, another group, or both.
fn set_owner(path: &Path, (user, group): (Option<u32>, Option<u32>)) -> io::Result<()> {
    let file = own_socket(path)?;
    chown(name_of(&file), user, group)
}

/// Opens the place of a socket of this process's user. Where others have rights in its directory, its path may be that
/// of another file meanwhile, such as a link, which is an error.
fn own_socket(path: &Path) -> io::Result<File> {
    let file = place_of_file(path)?;
    let found = file.metadata()?;
    // A file with a second name may be anywhere else.
    if !found.file_type().is_socket() || found.uid() != euid() || found.nlink() != 1 {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "another file has taken its place"));
    }
    Ok(file)
}

/// Returns the path of an open file, whatever has its name (proc(5)).
fn name_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The file at the path at which a socket is to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The path has no file.
    Nothing,
    /// The socket that an ended instance has left.
    Left,
}

/// Returns the content of a socket's path, or an error for a socket that is in use and for any other file.
pub(super) fn free(path: &Path) -> Result<Found, Error> {
    let shown = path.display();
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(Found::Nothing) };
    if !found.file_type().is_socket() {
        let text = format!("{shown} exists already, and is no socket");
        return Err(Error::new(Kind::InUse, text, "another path: vhost:/run/segue/vm1.vhost")
            .why("a file that is no socket is not replaced"));
    }
    // A datagram socket cannot be connected to a stream socket. The kernel says so without a connection, which the port
    // of a guest that runs would take for a front end, or that no process has the file's socket (`unix_find_bsd`).
    let probe = UnixDatagram::unbound().and_then(|probe| probe.connect(path));
    if probe.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        return Ok(Found::Left);
    }
    let hint = format!("another path, or the front end as the server: vhost:{shown},client\nss -xlp src {shown}");
    Err(Error::new(Kind::InUse, format!("another process listens at {shown}"), hint).why("one guest has one port"))
}

/// Returns the ids of `USER`, `USER:GROUP` or `:GROUP`, each by name or by number.
fn ids(owner: &str) -> Result<(Option<u32>, Option<u32>), Error> {
    let (user, group) = owner.split_once(':').map_or((owner, ""), |(user, group)| (user, group));
    let find = |file: &str, name: &str| {
        if name.is_empty() {
            return Ok(None);
        }
        if let Ok(number) = name.parse() {
            return Ok(Some(number));
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        id_of(&text, name).map(Some).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("{file} has no `{name}`"), format!("getent passwd {name}\nowner=NUMBER"))
                .why("the owner of a socket is looked up there")
        })
    };
    Ok((find("/etc/passwd", user)?, find("/etc/group", group)?))
}

/// Returns the third field of the line that begins with `name`, as passwd(5) and group(5) have it.
fn id_of(text: &str, name: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::{env, process};

    use segue_host::sys::connect_path;

    use super::*;

    /// Longest wait for anything in these tests.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Variable of a process that runs one test only: a file mode mask is for all threads.
    const ALONE: &str = "SEGUE_TEST_ALONE";

    /// An empty directory, removed in the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = env::temp_dir().join(format!("segue-vhost-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Returns the permissions of a file.
    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Runs a test of this module in a process of its own, with the given directory.
    fn run_alone(test: &str, folder: &Folder) {
        let name = format!("vhost::socket::tests::{test}");
        let output = Command::new(env::current_exe().unwrap()).args(["--exact", &name]).env(ALONE, &folder.0).output();
        let output = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        assert!(output.contains("1 passed"), "{output}");
    }

    /// Sets a default ACL of a directory, which allows its owner to read and write, and others to read; returns whether
    /// it could.
    fn limit_by_default_acl(folder: &Folder) -> bool {
        const SET: &str = "import os, struct, sys; entries = [(1, 6), (4, 4), (32, 4)]; \
            value = b''.join(struct.pack('<HHI', *entry, 0xffffffff) for entry in entries); \
            os.setxattr(sys.argv[1], 'system.posix_acl_default', struct.pack('<I', 2) + value)";
        Command::new("python3").args(["-c", SET]).arg(&folder.0).output().is_ok_and(|output| output.status.success())
    }

    #[test]
    fn a_socket_has_its_mode_in_a_directory_whose_default_acl_allows_less() {
        let Some(folder) = env::var_os(ALONE).map(PathBuf::from) else {
            let folder = Folder::new("acl");
            if !limit_by_default_acl(&folder) {
                return segue_lab::skip_this_test("no python3, or a file system without ACLs");
            }
            return run_alone("a_socket_has_its_mode_in_a_directory_whose_default_acl_allows_less", &folder);
        };
        let path = folder.join("vm.sock");
        for wanted in [0o600, 0o660, 0o666] {
            drop(listen(&path, wanted).unwrap());
            assert_eq!(mode(&path), wanted);
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn the_permissions_and_the_owner_of_no_other_file_are_set() {
        let folder = Folder::new("other");
        let same = (Some(euid()), None);
        let [path, target, second] = ["vm.sock", "target", "second"].map(|name| folder.0.join(name));
        let _listener = UnixListener::bind(&target).unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
        symlink(&target, &path).unwrap();
        assert!(set_mode(&path, 0o666).is_err() && set_owner(&path, same).is_err());
        fs::remove_file(&path).unwrap();
        fs::hard_link(&target, &second).unwrap();
        assert!(set_mode(&target, 0o666).is_err() && set_owner(&target, same).is_err());
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(set_mode(&path, 0o666).is_err() && set_owner(&path, same).is_err());
        assert_eq!((mode(&target), mode(&path)), (0o600, 0o600));
        fs::remove_file(&second).unwrap();
        set_mode(&target, 0o666).unwrap();
        assert_eq!(mode(&target), 0o666);
        if euid() != 0 {
            return segue_lab::skip_this_test("not root");
        }
        if set_owner(&target, (Some(1), Some(2))).is_err() {
            return segue_lab::skip_this_test("a user namespace without other ids");
        }
        let found = fs::metadata(&target).unwrap();
        assert_eq!((found.uid(), found.gid(), mode(&target)), (1, 2, 0o666));
        assert!(set_owner(&target, (Some(0), None)).is_err(), "it is this user's no more");
    }

    #[test]
    fn a_socket_has_its_mode_and_no_file_behind_a_link_in_its_place_gets_it() {
        let Some(folder) = env::var_os(ALONE).map(PathBuf::from) else {
            let folder = Folder::new("mode");
            return run_alone("a_socket_has_its_mode_and_no_file_behind_a_link_in_its_place_gets_it", &folder);
        };
        let [path, link, target] = ["vm.sock", "link", "target"].map(|name| folder.join(name));
        for wanted in [0o600, 0o660, 0o666] {
            drop(listen(&path, wanted).unwrap());
            assert_eq!(mode(&path), wanted);
            fs::remove_file(&path).unwrap();
        }
        fs::write(&target, "").unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Another process with rights in the directory puts a link in the socket's place all the time.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    symlink(&target, &link).unwrap();
                    fs::rename(&link, &path).unwrap();
                }
            });
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(300) {
                let _ = fs::remove_file(&path);
                // It fails where the link is there already, or its own file is there no more.
                let _ = listen(&path, 0o666);
                let _ = set_mode(&path, 0o666);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode(&target), 0o600);
    }

    #[test]
    fn a_listener_that_accepts_nothing_is_in_use_at_once() {
        let folder = Folder::new("full");
        let path = folder.0.join("vm.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        // Connections whose client is gone stay in the queue.
        while connect_path(&path).is_ok() {}
        let (answers, answer) = mpsc::channel();
        thread::spawn(move || answers.send(free(&path)));
        assert_eq!(answer.recv_timeout(PATIENCE).expect("it waits for nobody").unwrap_err().kind, Kind::InUse);
    }

    #[test]
    fn a_listener_is_in_use_and_gets_no_connection() {
        let folder = Folder::new("listed");
        let path = folder.0.join("vm with spaces.sock");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(free(&path).unwrap_err().kind, Kind::InUse);
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        // Its path is now that of a socket which no process has, and which the kernel lists by the same name.
        fs::rename(&path, folder.0.join("elsewhere")).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(free(&path).unwrap(), Found::Left);
    }

    #[test]
    fn owners_are_names_or_numbers() {
        assert_eq!(ids("7").unwrap(), (Some(7), None));
        assert_eq!(ids(":8").unwrap(), (None, Some(8)));
        assert_eq!(ids("root:0").unwrap(), (Some(0), Some(0)));
        assert_eq!(ids("nobody-has-this-name").unwrap_err().kind, Kind::NotFound);
        assert_eq!(id_of("a:x:1:2\nab:x:3:4\n", "ab"), Some(3));
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_one_in_use_is_not() {
        let folder = Folder::new("socket");
        let path = folder.0.join("vm.sock");
        assert_eq!(free(&path).unwrap(), Found::Nothing);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(free(&path).unwrap_err().kind, Kind::InUse);
        drop(listener);
        // A child of another test may have a copy of it for a moment.
        let begin = Instant::now();
        while free(&path).is_err() && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(free(&path).unwrap(), Found::Left);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(free(&path).unwrap_err().kind, Kind::InUse);
    }
}
