//! The user of a packet process, which no other process has, so that no other process can signal it.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::RangeInclusive;
use std::path::Path;

use segue_control::error::{Error, Kind};
use segue_control::lock::Lock;
use segue_host::sys;

/// The user that a package makes for segue. Where there is none, each instance takes a number of its own.
const NAME: &str = "segue";
/// Range of user ids that are not allocated otherwise: between systemd's ranges for homes and for users of containers,
/// and for its dynamic users (systemd's UIDS-GIDS document).
const RANGE: RangeInclusive<u32> = 60_706..=61_183;

/// The user and the group that a process changes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Chooses the user for the instance `name`, if this process is root and may change its user. A number that no other
/// process has comes with the lock of `folder`, to be held until a process has that user.
pub(super) fn other(name: &str, folder: &Path) -> Result<Option<(User, Option<Lock>)>, Error> {
    if sys::euid() != 0 || !may_change() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some(user) = named(&passwd).filter(is_mapped) {
        return Ok(Some((user, None)));
    }
    if !is_mapped(&numbered(*RANGE.start())) || !is_mapped(&numbered(*RANGE.end())) {
        return Ok(None);
    }
    let lock = Lock::take(folder).map_err(|error| {
        Error::system("cannot choose a user for the process that moves packets", &error, "start again")
            .why(format!("{} could not be locked", folder.display()))
    })?;
    match free(name, &passwd, &in_use()) {
        Some(uid) => Ok(Some((numbered(uid), Some(lock)))),
        None => {
            let why = format!("processes have all of {} to {}", RANGE.start(), RANGE.end());
            let hint = format!("useradd --system --no-create-home {NAME}");
            Err(Error::new(Kind::System, "no user is left for the process that moves packets", hint).why(why))
        }
    }
}

fn numbered(id: u32) -> User {
    User { name: id.to_string(), uid: id, gid: id }
}

/// Returns whether this process may change its user and its groups.
fn may_change() -> bool {
    const CAP_SETGID: u32 = 6;
    const CAP_SETUID: u32 = 7;
    let groups = fs::read_to_string("/proc/self/setgroups").map_or(true, |text| text.trim() == "allow");
    let caps = sys::capabilities().unwrap_or(0);
    groups && caps >> CAP_SETGID & 1 == 1 && caps >> CAP_SETUID & 1 == 1
}

/// Returns whether the ids of a user exist in this user namespace.
fn is_mapped(user: &User) -> bool {
    let maps =
        |file: &str, id: u32| fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| has_id(line, id)));
    maps("/proc/self/uid_map", user.uid) && maps("/proc/self/gid_map", user.gid)
}

/// Returns whether a line of uid_map or gid_map (first inside, first outside, count) has `id` inside.
fn has_id(line: &str, id: u32) -> bool {
    let fields: Vec<u32> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    matches!(fields[..], [inside, _, len] if id >= inside && id - inside < len)
}

/// Returns the entry [`NAME`] of a passwd file, unless it has a user id of root.
fn named(passwd: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == NAME).then_some(())?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        (uid != 0 && gid != 0).then_some(User { name: NAME.to_owned(), uid, gid })
    })
}

/// Returns a user id of [`RANGE`] that neither the passwd file nor a process has, always the same one for a name if
/// possible.
fn free(name: &str, passwd: &str, in_use: &BTreeSet<u32>) -> Option<u32> {
    let known: BTreeSet<u32> = passwd.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect();
    let count = RANGE.end() - RANGE.start() + 1;
    // The hasher has fixed keys: it is the same in every process.
    let first = (BuildHasherDefault::<DefaultHasher>::default().hash_one(name) % u64::from(count)) as u32;
    let mut all = (0..count).map(|step| RANGE.start() + (first + step) % count);
    all.find(|uid| !known.contains(uid) && !in_use.contains(uid))
}

/// Returns the real user ids of all processes in `/proc`.
fn in_use() -> BTreeSet<u32> {
    let Ok(folder) = fs::read_dir("/proc") else { return BTreeSet::new() };
    let of = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        ids.split_whitespace().next()?.parse().ok()
    };
    folder.filter_map(|entry| of(entry.ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_package_is_taken_unless_it_is_root() {
        let text = "root:x:0:0:root:/root:/bin/sh\nsegue:x:99:98:x:/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n";
        assert_eq!(named(text), Some(User { name: "segue".into(), uid: 99, gid: 98 }));
        for other in ["segue:x:0:0:::\n", "segue:x:5:0:::\n", "nobody:x:65534:65534:::\n", ""] {
            assert_eq!(named(other), None, "{other}");
        }
    }

    #[test]
    fn each_instance_has_a_number_of_its_own_and_the_same_one_again() {
        let first = free("sg0", "", &BTreeSet::new()).unwrap();
        assert!(RANGE.contains(&first));
        assert_eq!(free("sg0", "", &BTreeSet::new()), Some(first));
        let next = free("sg0", "", &BTreeSet::from([first])).unwrap();
        assert!(next != first && RANGE.contains(&next));
        let listed = format!("somebody:x:{first}:1::/:/bin/sh\n");
        assert_eq!(free("sg0", &listed, &BTreeSet::new()), Some(next));
        assert_eq!(free("sg0", "", &RANGE.collect()), None);
    }

    #[test]
    fn a_namespace_of_one_user_has_no_others() {
        assert!(!has_id("         0       1000          1", *RANGE.end()));
        assert!(has_id("         0          0 4294967295", *RANGE.end()));
        assert!(in_use().contains(&sys::euid()), "this process has its user");
    }
}
