//! The directories of control sockets.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use segue_host::sys;

/// The environment variable that overrides the directory of control sockets.
pub const VARIABLE: &str = "SEGUE_RUNTIME_DIR";

/// The environment variable that names the group whose members may read the state of instances.
pub const READERS: &str = "SEGUE_GROUP";

/// The file name suffix of an instance's socket.
pub const INSTANCE: &str = ".sock";

/// Mode bit of a socket that is not for control, whatever its name (the sticky bit, which means nothing for a socket):
/// that of a guest's port, which would take a process that asks there for the guest.
pub const NOT_FOR_CONTROL: u32 = 0o1000;

/// The file name suffix of a service's socket.
pub const SERVICE: &str = ".service";

/// The directories of root, of which it uses the second where the first one belongs to the user of the package's
/// services. Only root makes directories in /run.
const OF_ROOT: [&str; 2] = ["/run/segue", "/run/segue-root"];

/// The only directory in which this process asks instances, once [`search_only`] has set it.
static ONLY: OnceLock<PathBuf> = OnceLock::new();

/// A directory that may hold control sockets.
struct Place {
    path: PathBuf,
    mode: u32,
}

/// Returns the directory that the environment names, if it names one.
pub fn chosen() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns whether the environment names a group that may read.
pub fn has_readers() -> bool {
    std::env::var_os(READERS).is_some_and(|name| !name.is_empty())
}

/// Returns the group that may read the state, if the environment names one: a name of /etc/group, or a number.
pub fn readers() -> io::Result<Option<u32>> {
    let Some(name) = std::env::var(READERS).ok().filter(|name| !name.is_empty()) else { return Ok(None) };
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let known = fs::read_to_string("/etc/group").unwrap_or_default();
    let found = known.lines().find_map(|line| group(line, &name));
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{READERS}: there is no group {name}"));
    found.map(Some).ok_or_else(missing)
}

/// Returns the group id in a line of group(5), if the line is that of this group.
fn group(line: &str, wanted: &str) -> Option<u32> {
    let mut fields = line.split(':');
    let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
    (name == wanted).then(|| id.parse().ok()).flatten()
}

/// Returns the directories for this user, the preferred one first.
fn places() -> Vec<Place> {
    if let Some(path) = chosen() {
        return vec![Place { path, mode: 0o755 }];
    }
    let mut places = Vec::new();
    if sys::euid() == 0 {
        places.extend(OF_ROOT.map(|path| Place { path: path.into(), mode: 0o755 }));
    }
    if let Some(path) = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute()) {
        places.push(Place { path: Path::new(&path).join("segue"), mode: 0o700 });
    }
    places.push(Place { path: format!("/tmp/segue-{}", outside_uid()).into(), mode: 0o700 });
    places
}

/// Creates the directory for a new instance, the first one of this user that is writable, and returns its path: after
/// [`search_only`] that directory, so that a moment in which it cannot be written to changes nothing.
pub fn for_new() -> io::Result<PathBuf> {
    if let Some(only) = ONLY.get() {
        let _ = places().iter().find(|place| place.path == *only).map(make);
        return Ok(only.clone());
    }
    first(|_| false)
}

/// Returns the directory for new instances, as [`for_new`] does, for a file of this name: also one that cannot be
/// written to now, such as a full one, where it is this user's and has the file.
pub fn for_file(name: &str) -> io::Result<PathBuf> {
    first(|path| fs::symlink_metadata(path).is_ok_and(|data| trusted(&data)) && path.join(name).exists())
}

/// Returns the first directory of this user that can be written to, or is `taken` although it cannot.
fn first(taken: impl Fn(&Path) -> bool) -> io::Result<PathBuf> {
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for place in places() {
        match make(&place) {
            Err(error) if !taken(&place.path) => last = error,
            _ => return Ok(place.path),
        }
    }
    Err(last)
}

/// Limits the instances that this process asks to those of one directory: a service is to ask its own, and not those of
/// other directories that have the same names. The first call counts.
pub fn search_only(directory: PathBuf) {
    let _: Result<(), PathBuf> = ONLY.set(directory);
}

/// Returns the directories that may hold this user's instances, the preferred one first, and then root's.
pub fn to_search() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = places().into_iter().map(|place| place.path).collect();
    if std::env::var_os(VARIABLE).is_none() {
        paths.extend(OF_ROOT.map(PathBuf::from));
    }
    usable(paths)
}

/// Returns the directories that a process must be able to read to ask instances: those of today, and those that it must
/// be able to list, in which directories may appear. A directory for new instances is made where there is none, so that
/// there seldom are any of the latter.
pub(crate) fn for_asking() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let is_there = |place: &Place| match fs::symlink_metadata(&place.path) {
        Ok(data) => trusted(&data),
        Err(_) => make(place).is_ok(),
    };
    let has_own = places().iter().any(is_there);
    let present = to_search().into_iter().chain(of_roots_agents()).collect();
    // What root starts later uses the directory that is there.
    let later = match chosen() {
        _ if has_own && sys::euid() == 0 => Vec::new(),
        Some(path) => vec![path],
        None => OF_ROOT.map(PathBuf::from).to_vec(),
    };
    let parent = |path: &PathBuf| path.ancestors().skip(1).find(|path| path.is_dir()).map(Path::to_owned);
    (present, later.iter().filter(|path| !path.exists()).filter_map(parent).collect())
}

/// Returns whether `folder` is one of the directories of [`to_search`], whatever path leads to it.
pub fn is_searched(folder: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    identity(folder).is_some_and(|own| to_search().iter().any(|path| identity(path) == Some(own)))
}

/// Returns the directories in which this process asks instances: those of [`to_search`], or the one of [`search_only`].
pub(crate) fn of_instances() -> Vec<PathBuf> {
    ONLY.get().map_or_else(to_search, |only| usable(vec![only.clone()]))
}

/// Returns those of the paths that may be searched, and of several paths to one directory the first.
fn usable(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut known = Vec::new();
    paths.retain(|path| {
        let Ok(data) = fs::symlink_metadata(path) else { return false };
        let directory = (data.dev(), data.ino());
        let is_new = !known.contains(&directory) && (trusted(&data) || of_a_service(path, &data));
        known.extend(is_new.then_some(directory));
        is_new
    });
    paths
}

/// Returns whether this user may change the instance with the control socket `path`: root may change that of any user
/// in its user namespace.
pub(crate) fn may_change(path: &Path) -> bool {
    /// The owner of files whose owner is none of this user namespace (user_namespaces(7)).
    const OVERFLOW: u32 = 65_534;
    let may = |owner: u32| owner == sys::euid() || sys::euid() == 0 && owner != OVERFLOW;
    fs::symlink_metadata(path).is_ok_and(|data| may(data.uid()))
}

/// Returns the directories in which an agent that root has started for a tunnel of the package's service has its files:
/// where that service's directory is the one that the environment names.
pub(crate) fn of_roots_agents() -> Vec<PathBuf> {
    let is_services = chosen().is_some_and(|path| path == Path::new(OF_ROOT[0]));
    if is_services { usable(OF_ROOT.map(PathBuf::from).to_vec()) } else { Vec::new() }
}

/// Returns whether the directory of another user may be searched: by every user one in /run, where only root makes
/// directories, as a service manager does for the user of a service; by root also the one that the environment names.
fn of_a_service(path: &Path, data: &fs::Metadata) -> bool {
    let is_in_run = path.parent() == Some(Path::new("/run"));
    let is_roots_choice = sys::euid() == 0 && chosen().is_some();
    (is_in_run || is_roots_choice) && data.is_dir() && data.mode() & 0o022 == 0
}

/// Creates a directory where it is missing, and checks that this process can write to it and other users cannot. A root
/// directory that holds the program alone, as in a container, has no /run yet: parents are made too.
fn make(place: &Place) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(place.mode).create(&place.path)?;
    let data = fs::symlink_metadata(&place.path)?;
    if !data.is_dir() || !trusted(&data) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // A directory that exists may still be read-only for this process. Processes of several containers that share it
    // may have the same number, so the name is random.
    let mut random = [0; 8];
    sys::random(&mut random)?;
    let probe = place.path.join(format!(".{:016x}", u64::from_ne_bytes(random)));
    DirBuilder::new().mode(0o700).create(&probe)?;
    fs::remove_dir(&probe)
}

/// Returns whether only root and this user can write to a directory. Any user can write to /tmp, so a directory or a
/// link there may belong to another user.
fn trusted(data: &fs::Metadata) -> bool {
    data.is_dir() && (data.uid() == sys::euid() || data.uid() == 0) && data.mode() & 0o022 == 0
}

/// Returns the id of this user outside of its user namespace, so that processes inside and outside of the namespace
/// use the same directory.
fn outside_uid() -> u32 {
    let uid = sys::euid();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().find_map(|line| mapped(line, uid)).unwrap_or(uid)
}

/// Maps `uid` by one line of uid_map: first id inside, first id outside, count.
fn mapped(line: &str, uid: u32) -> Option<u32> {
    let mut fields = line.split_whitespace().map(|field| field.parse::<u32>());
    let (inside, outside, len) = (fields.next()?.ok()?, fields.next()?.ok()?, fields.next()?.ok()?);
    let at = uid.checked_sub(inside)?;
    (at < len).then(|| outside.checked_add(at)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        assert_eq!(group("adm:x:4:syslog,user", "adm"), Some(4));
        for line in ["adm:x:4:", "ad:x:", "ad:x:many:", ""] {
            assert_eq!(group(line, "ad"), None, "{line}");
        }
    }

    #[test]
    fn directories_keep_their_order_and_each_is_there_once_whatever_path_leads_to_it() {
        let top = std::env::temp_dir().join(format!("segue-once-{}", std::process::id()));
        let [own, other, linked] = ["run/segue", "other/segue", "linked"].map(|name| top.join(name));
        for path in [&own, &other] {
            DirBuilder::new().recursive(true).mode(0o700).create(path).expect("a directory");
        }
        std::os::unix::fs::symlink(top.join("run"), &linked).expect("a link");
        let found = usable(vec![other.clone(), own.clone(), top.join("none"), linked.join("segue"), other.clone()]);
        fs::remove_dir_all(&top).expect("it is removed");
        assert_eq!(found, [other, own]);
    }

    #[test]
    fn the_uid_map_gives_the_id_outside() {
        assert_eq!(mapped("         0       1000          1", 0), Some(1000));
        assert_eq!(mapped("0 1000 1", 1), None);
        assert_eq!(mapped("0 0 4294967295", 65_534), Some(65_534));
        assert_eq!(mapped("garbage", 0), None);
    }

    #[test]
    fn a_directory_is_made_with_its_parents_and_not_in_the_place_of_a_file() {
        let top = std::env::temp_dir().join(format!("segue-place-{}", std::process::id()));
        let path = top.join("run/segue");
        let made = make(&Place { path: path.clone(), mode: 0o755 });
        // As of a process of another container that has the same number.
        DirBuilder::new().create(path.join(format!(".{}", std::process::id()))).expect("a directory");
        let again = make(&Place { path: path.clone(), mode: 0o755 });
        fs::write(path.join("file"), "").expect("a file");
        let file = make(&Place { path: path.join("file"), mode: 0o755 });
        fs::remove_dir_all(&top).expect("it is removed");
        assert!(made.is_ok() && again.is_ok(), "{made:?} {again:?}");
        assert!(file.is_err());
    }
}
