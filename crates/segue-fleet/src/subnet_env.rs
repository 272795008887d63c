//! The file `subnet.env`, by which flannel passes a host's subnet to other programs.

use std::io;
use std::path::Path;

use segue_control::fleet;

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
        SubnetEnv::parse(&std::fs::read_to_string(path).ok()?)
    }

    /// Writes the file atomically: readers see either the old or the new content.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        fleet::replace(path, self.text().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
