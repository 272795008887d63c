//! The file `subnet.env`, by which flannel passes a host's subnet to other programs.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use segue_control::fleet;
use segue_host::file::Identity;

use crate::network::Network;

/// Content of the file `subnet.env`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The network of the fleet.
    pub network: Network,
    /// The subnet of this host.
    pub subnet: Network,
    /// The MTU of the tunnel.
    pub mtu: u32,
}

/// A file `subnet.env` that this process has written, by which it knows the file again without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    content: SubnetEnv,
    file: Identity,
    modified: SystemTime,
}

impl Written {
    fn of(content: SubnetEnv, path: &Path) -> io::Result<Written> {
        let data = fs::symlink_metadata(path)?;
        Ok(Written { content, file: Identity::from(&data), modified: data.modified()? })
    }
}

impl SubnetEnv {
    /// Formats the file's text, in flannel's order and spelling.
    pub fn text(&self) -> String {
        let SubnetEnv { network, subnet, mtu } = self;
        format!(
            "FLANNEL_NETWORK={network}\nFLANNEL_SUBNET={}/{}\nFLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=false\n",
            subnet.host(),
            subnet.prefix_len()
        )
    }

    /// Parses the file's text; `None` where a line is missing or wrong.
    pub fn parse(text: &str) -> Option<SubnetEnv> {
        let value = |name: &str| {
            text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('=')).map(|value| value.trim())
        };
        Some(SubnetEnv {
            network: Network::parse(value("FLANNEL_NETWORK")?)?,
            subnet: Network::parse(value("FLANNEL_SUBNET")?)?,
            mtu: value("FLANNEL_MTU")?.parse().ok()?,
        })
    }

    /// Reads the file; `None` where there is none or it is wrong.
    pub fn read(path: &Path) -> Option<SubnetEnv> {
        SubnetEnv::parse(&fs::read_to_string(path).ok()?)
    }

    /// Writes the file atomically: readers see either the old or the new content.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        fleet::replace(path, self.text().as_bytes())
    }

    /// Writes the file unless it is there with this content. Where this process may not read it, as in the sandbox of
    /// the agent, it is there as long as it is the one that was `written` last.
    pub fn keep(&self, path: &Path, written: &mut Option<Written>) -> io::Result<()> {
        let is_there = match fs::read_to_string(path) {
            Ok(text) => SubnetEnv::parse(&text) == Some(*self),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                written.is_some() && *written == Written::of(*self, path).ok()
            }
            Err(_) => false,
        };
        if !is_there {
            self.write(path)?;
            *written = Written::of(*self, path).ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use segue_control::confinement::{Needs, confine};
    use segue_host::sandbox::filter::Tasks;

    use super::*;

    #[test]
    fn a_file_that_may_not_be_read_is_written_once_for_each_content_and_after_another_program() {
        let folder = std::env::temp_dir().join(format!("segue-subnet-env-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [path, other] = ["subnet.env", "other"].map(|name| folder.join(name));
        let file = SubnetEnv {
            network: Network::parse("198.19.0.0/16").unwrap(),
            subnet: Network::parse("198.19.59.0/24").unwrap(),
            mtu: 1450,
        };
        let at = path.clone();
        // The sandbox of the agent, which applies to the calling thread.
        let confined = std::thread::spawn(move || {
            let tasks = Tasks { changes: true, threads: true, ..Tasks::default() };
            confine(&Needs { replaces: vec![at.clone()], tasks, ..Needs::default() }, true).unwrap();
            let mut written = None;
            let mut kept = |file: SubnetEnv| {
                file.keep(&at, &mut written).unwrap();
                Identity::of(&at).unwrap()
            };
            let first = [kept(file), kept(file)];
            let second = [1400, 1400].map(|mtu| kept(SubnetEnv { mtu, ..file }));
            fs::write(&other, "FLANNEL_MTU=1\n").unwrap();
            fs::rename(&other, &at).unwrap();
            (first, second, [kept(file), kept(file)], fs::read(&at).is_ok())
        });
        let (first, second, third, is_read) = confined.join().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        if is_read {
            return segue_lab::skip_this_test("this kernel has no Landlock");
        }
        assert!([first, second, third].iter().all(|[one, again]| one == again), "{first:?} {second:?} {third:?}");
        assert_eq!(text, file.text());
    }

    #[test]
    fn the_file_is_that_of_flannel() {
        let text =
            "FLANNEL_NETWORK=198.19.0.0/16\nFLANNEL_SUBNET=198.19.59.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
        let read = SubnetEnv::parse(text).unwrap();
        assert_eq!(read.subnet, Network::parse("198.19.59.0/24").unwrap());
        assert_eq!(read.text(), text);
        assert_eq!(SubnetEnv::parse("FLANNEL_NETWORK=198.19.0.0/16\n"), None);
        assert_eq!(SubnetEnv::parse(&text.replace("1450", "many")), None);
    }
}
