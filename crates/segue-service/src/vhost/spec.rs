//! The word for a guest on a command line: `vhost:PATH[,client][,mode=MODE][,owner=USER[:GROUP]][,name=NAME]`.

use std::path::{Path, PathBuf};

use segue_control::error::{Kind, printable};
use segue_host::interface::{NAME_LEN, check_name};
use serde::{Serialize, Serializer};

use crate::tunnel::kinds::Mode;

/// Prefix of a guest's word on the command line.
const PREFIX: &str = "vhost:";
/// Length of the longest path of a socket, bytes (`sun_path` without the final zero).
const MOST_PATH: usize = 107;

/// The side that listens at the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// segue listens, and front ends connect.
    Server,
    /// The front end listens, and segue connects, again and again.
    Client,
}

/// The socket of a guest's front end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spec {
    /// Path of the guest's socket.
    pub path: PathBuf,
    /// The side that listens at the socket.
    pub role: Role,
    /// The permissions of the socket; 0600 by default.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "octal")]
    pub mode: Option<u32>,
    /// The owner of the socket, and its group after a colon, by name or by number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

fn octal<S: Serializer>(mode: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    match mode {
        Some(mode) => serializer.collect_str(&format_args!("{mode:04o}")),
        None => serializer.serialize_none(),
    }
}

impl Spec {
    /// Parses a guest's word, if it is one: the name of the port, and its socket. The error says what is wrong.
    pub fn parse(word: &str) -> Option<Result<(String, Spec), String>> {
        word.strip_prefix(PREFIX).map(parse)
    }

    /// Parses the word for the inside of a tunnel of this mode: an interface, or a guest. `is_interface` says whether
    /// other words need an interface of this host. The error has a message and a note.
    pub fn inside(
        word: &str,
        mode: Mode,
        is_interface: bool,
    ) -> Result<(String, Option<Spec>), (Kind, String, String)> {
        let shown = printable(word);
        match Spec::parse(word) {
            None => Ok((word.to_owned(), None)),
            Some(Err(note)) => Err((Kind::BadValue, format!("`{shown}` is no guest"), note)),
            Some(Ok(_)) if !mode.is_ethernet() => {
                let message = format!("a guest does not go with `mode {}`", mode.name());
                Err((
                    Kind::Conflict,
                    message,
                    "it sends Ethernet frames: `mode vxlan`, `geneve` or `gretap`".to_owned(),
                ))
            }
            Some(Ok(_)) if is_interface => {
                let note = "addresses are the guest's own, and peers are found by them: leave `addr` and `peers` out";
                Err((Kind::Conflict, "a guest does not go with `addr` or `peers`".to_owned(), note.to_owned()))
            }
            Some(Ok((name, spec))) => Ok((name, Some(spec))),
        }
    }

    /// Describes the guest's port for messages.
    pub fn place(&self) -> String {
        let path = self.path.display();
        match self.role {
            Role::Server => format!("a guest, which connects to {path}"),
            Role::Client => format!("a guest, whose front end listens at {path}"),
        }
    }
}

fn parse(rest: &str) -> Result<(String, Spec), String> {
    let mut parts = rest.split(',');
    let path = parts.next().unwrap_or_default();
    if path.is_empty() {
        return Err("expected the path of a socket after vhost:".to_owned());
    }
    if path.len() > MOST_PATH || path.contains('\0') {
        return Err(format!("the path of a socket has at most {MOST_PATH} bytes"));
    }
    let mut spec = Spec { path: PathBuf::from(path), role: Role::Server, mode: None, owner: None };
    let mut name = None;
    for part in parts {
        match part.split_once('=') {
            None if part == "client" => spec.role = Role::Client,
            None if part == "server" => spec.role = Role::Server,
            Some(("mode", mode)) => {
                let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777);
                spec.mode = Some(mode.ok_or("expected permissions as 0660 after mode=")?);
            }
            Some(("owner", owner)) if !owner.is_empty() => spec.owner = Some(owner.to_owned()),
            Some(("name", text)) => name = Some(check_name(text)?.to_owned()),
            _ => return Err("expected client, mode=0660, owner=USER:GROUP or name=NAME after the comma".to_owned()),
        }
    }
    if spec.role == Role::Client && (spec.mode.is_some() || spec.owner.is_some()) {
        return Err("with client the socket is made by the front end, with its mode and its owner".to_owned());
    }
    let name = match name {
        Some(name) => name,
        None => name_of(&spec.path).ok_or("the file has no name for a port: name=vm1 after a comma gives one")?,
    };
    Ok((name, spec))
}

/// Returns the file name up to its first dot, if that can be the name of a port.
fn name_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.split('.').next()?;
    let fits = name.len() <= NAME_LEN && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    (fits && check_name(name).is_ok()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_a_path_with_options() {
        let parse = |text: &str| Spec::parse(text).unwrap();
        let (name, spec) = parse("vhost:/run/segue/vm1.vhost").unwrap();
        assert_eq!((name.as_str(), spec.path.to_str(), spec.role), ("vm1", Some("/run/segue/vm1.vhost"), Role::Server));
        assert_eq!((spec.mode, spec.owner), (None, None));
        let (name, spec) = parse("vhost:/a b/x.y.z,mode=0660,owner=libvirt-qemu:kvm,name=web").unwrap();
        assert_eq!((name.as_str(), spec.mode, spec.owner.as_deref()), ("web", Some(0o660), Some("libvirt-qemu:kvm")));
        assert_eq!(serde_json::to_value(&spec).unwrap_or_default()["mode"], "0660");
        assert_eq!(parse("vhost:vm,client").unwrap().1.role, Role::Client);
        assert_eq!(Spec::parse("tap:t0"), None);
    }

    #[test]
    fn what_is_no_guest_is_told() {
        let long = format!("vhost:/{}", "x".repeat(107));
        for word in [
            "vhost:",
            "vhost:,client",
            "vhost:/a,b",
            "vhost:/a,mode=9",
            "vhost:/a,mode=1777",
            "vhost:/a,owner=",
            "vhost:/a,client,mode=0600",
            "vhost:/a/a-name-too-long-for-a-port.sock",
            "vhost:/a b",
            "vhost:/",
            "vhost:/a,name=a/b",
            &long,
        ] {
            assert!(Spec::parse(word).unwrap().is_err(), "{word}");
        }
    }
}
