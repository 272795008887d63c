//! Two hosts with a processor each, a cable, and a tunnel across it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::bed;
use super::profile::Profile;
use super::site::Site;
use crate::case::kernel_vxlan;
use crate::process::checked_output;
use crate::{Cpu, Family, Host, LabError, LinkForm, Named, Peer, Process, reach};

/// Name of the tunnel's device.
const DEVICE: &str = "sg0";
/// Number of the network inside of the tunnel.
const INSIDE: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(5);
/// TCP receive memory that keeps the window below 256 datagrams: a veth end with GRO drops frames beyond that.
const RING_MEMORY: &str = "4096 131072 340000";

/// Implementations of the tunnel.
#[derive(Debug, Clone)]
pub(super) enum Tunnel {
    /// `segue tunnel` with the given words, and a checksum implementation by name if it is not the fastest.
    Segue { words: Vec<&'static str>, simd: Option<&'static str> },
    /// The kernel's VXLAN with outer checksums.
    Kernel,
}

/// Two hosts, a cable and a tunnel between them. The sender is [`Peer::A`], on the load's processor.
pub(super) struct Span<'a> {
    // Dropped in this order: what runs in the hosts ends first.
    tunnels: Vec<Process>,
    pub(super) sender: Host,
    pub(super) receiver: Host,
    site: &'a Site,
    is_segue: bool,
    family: Family,
}

/// The counters read before a load.
pub(super) struct Before {
    begin: Instant,
    cpu: [f64; 2],
    summed: [u64; 2],
    profile: Option<Profile>,
}

impl<'a> Span<'a> {
    /// Makes hosts and tunnel and waits until datagrams pass. The inner `Err` says why that is not possible here.
    pub(super) fn new(
        site: &'a Site,
        form: LinkForm,
        tunnel: &Tunnel,
        family: Family,
    ) -> Result<Result<Span<'a>, String>, LabError> {
        let cores = [site.load_core, site.test_core];
        let host =
            |name, core| -> Result<Host, LabError> { bed::host(name, &Arc::new(Cpu::on_core(core, site.quota)?)) };
        let (sender, receiver) = (host("sender", cores[0])?, host("receiver", cores[1])?);
        let names = [bed::unique_name(), bed::unique_name()];
        let ends = [(Peer::A, &sender), (Peer::B, &receiver)];
        let card = |at: usize| bed::Card {
            host: ends[at].1,
            name: &names[at],
            mtu: 1500,
            features: form.features(),
            core: cores[at],
        };
        bed::cable(&card(0), &card(1))?;
        let is_segue = matches!(tunnel, Tunnel::Segue { .. });
        let mut tunnels = Vec::new();
        for ((end, host), name) in ends.into_iter().zip(&names) {
            if !form.features().is_empty()
                && let Some(why) = bed::aggregate(host, name)?
            {
                return Ok(Err(why));
            }
            // Trains out of a tunnel take hardly more memory than they have bytes, so that the window is larger than
            // what `aggregate` provides for.
            host.set_sysctl("ipv4/tcp_rmem", RING_MEMORY)?;
            bed::address(host, end, name, Family::V4)?;
            if family == Family::V6 {
                // For devices made from here on; the card goes without.
                host.set_sysctl("ipv6/conf/default/disable_ipv6", "0")?;
            }
            match tunnel {
                Tunnel::Segue { words, simd } => tunnels.push(start(site, host, end, words, *simd, family)?),
                Tunnel::Kernel => {
                    if let Some(why) = kernel_vxlan(host, (DEVICE, name), end, Family::V4)? {
                        return Ok(Err(why));
                    }
                    host.run("ip", &["addr", "add", &end.prefix(INSIDE, family), "dev", DEVICE])?;
                    host.run("ip", &["link", "set", DEVICE, "up"])?;
                }
            }
        }
        let mut span = Span { tunnels, sender, receiver, site, is_segue, family };
        let from = Peer::A.address(INSIDE, family);
        if let Err(error) = reach((&span.sender, from), (&span.receiver, span.to()), PATIENCE) {
            let ended = span.tunnels.iter_mut().find_map(|tunnel| tunnel.ended().map(|_| tunnel.failure("ended")));
            return Err(ended.unwrap_or(error));
        }
        Ok(Ok(span))
    }

    /// Returns the receiver's address inside of the tunnel.
    pub(super) fn to(&self) -> IpAddr {
        Peer::B.address(INSIDE, self.family)
    }

    /// Reads the counters immediately before a load.
    pub(super) fn before(&self) -> Result<Before, LabError> {
        let profile = Profile::start(&self.site.segue, &[self.site.load_core, self.site.test_core])?;
        let summed = self.summed()?;
        Ok(Before { begin: Instant::now(), cpu: bed::cpu_seconds(self.hosts())?, summed, profile })
    }

    /// Reads the counters immediately after a load. Returns what each processor did for it.
    pub(super) fn after(&self, before: Before, values: &mut Named<f64>) -> Result<[f64; 2], LabError> {
        let (wall, cpu) = (before.begin.elapsed().as_secs_f64(), bed::cpu_seconds(self.hosts())?);
        let used = [cpu[0] - before.cpu[0], cpu[1] - before.cpu[1]];
        let shares = before.profile.map(Profile::shares).transpose()?.flatten();
        let summed = self.summed()?;
        for (at, end) in ["tx", "rx"].into_iter().enumerate() {
            values.push(&format!("{end}_cpu_percent"), 100.0 * used[at] / wall);
            if self.is_segue {
                values.push(&format!("{end}_summed_bytes"), (summed[at] - before.summed[at]) as f64);
            }
            if let Some(shares) = &shares {
                values.push(&format!("{end}_checksum_percent"), shares[at]);
            }
        }
        Ok(used)
    }

    fn hosts(&self) -> [&Host; 2] {
        [&self.sender, &self.receiver]
    }

    /// Returns the payload bytes that segue's engine has summed, at each end.
    fn summed(&self) -> Result<[u64; 2], LabError> {
        let mut summed = [0; 2];
        for (host, summed) in self.hosts().into_iter().zip(&mut summed).filter(|_| self.is_segue) {
            let mut command = host.command(&self.site.segue);
            let text = checked_output(command.args(["stat", "-j", DEVICE]))?;
            *summed = of_ports(&text).ok_or_else(|| LabError::Load(format!("segue stat said {text:?}")))?;
        }
        Ok(summed)
    }
}

/// Returns the sum over an instance's ports.
fn of_ports(stat: &str) -> Option<u64> {
    let stat: Value = serde_json::from_str(stat).ok()?;
    let ports = stat["instances"].as_array()?.first()?["ports"].as_object()?;
    ports.values().map(|port| port["checksummed_bytes"].as_u64()).sum()
}

fn start(
    site: &Site,
    host: &Host,
    end: Peer,
    words: &[&str],
    simd: Option<&str>,
    family: Family,
) -> Result<Process, LabError> {
    let outer = |end: Peer| end.address(0, Family::V4).to_string();
    let mut command = host.command(&site.segue);
    if let Some(simd) = simd {
        command.env("SEGUE_SIMD", simd);
    }
    command.args(["tunnel", "dev", DEVICE, "local", &outer(end), "remote", &outer(end.other())]).args(words);
    command.args(["addr", &end.prefix(INSIDE, family)]);
    Process::spawn(command, b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_summed_are_those_of_all_ports() {
        let stat = r#"{"instances":[{"ports":{"sg0":{"checksummed_bytes":3},"udp":{"checksummed_bytes":4}}}]}"#;
        assert_eq!(of_ports(stat), Some(7));
        assert_eq!((of_ports(r#"{"instances":[]}"#), of_ports(r#"{"instances":[{"ports":{"a":{}}}]}"#)), (None, None));
    }
}
