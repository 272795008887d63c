//! The socket at which a front end connects: a file with the mode and the owner that the administrator chose.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_host::sys::with_umask;

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
    let mode = spec.mode.unwrap_or(MODE);
    // No front end can connect before the file has its mode.
    let bound = with_umask(!mode & 0o777, || UnixListener::bind(path));
    let listener = bound.map_err(|error| failed("make", &error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| failed("set the mode of", &error))?;
    if let Some((user, group)) = owner {
        // Not by a link that somebody with rights in the directory has put there.
        lchown(path, user, group).map_err(|error| failed("set the owner of", &error))?;
    }
    Ok(listener)
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
        return Err(Error::new(Kind::InUse, text, "another path: vhost:/run/segue/vm1.sock")
            .why("a file that is no socket is not replaced"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Found::Left),
        _ => {
            let hint =
                format!("another path, or the front end as the server: vhost:{shown},client\nss -xlp src {shown}");
            Err(Error::new(Kind::InUse, format!("another process listens at {shown}"), hint)
                .why("one guest has one port"))
        }
    }
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
    use super::*;

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
        let folder = std::env::temp_dir().join(format!("segue-vhost-socket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("vm.sock");
        assert_eq!(free(&path).unwrap(), Found::Nothing);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(free(&path).unwrap_err().kind, Kind::InUse);
        drop(listener);
        // A child of another test may have a copy of it for a moment.
        let begin = Instant::now();
        while free(&path).is_err() && begin.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(free(&path).unwrap(), Found::Left);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(free(&path).unwrap_err().kind, Kind::InUse);
        fs::remove_dir_all(&folder).unwrap();
    }
}
