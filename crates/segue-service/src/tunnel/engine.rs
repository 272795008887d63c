//! Conversion of a plan to the engine's configuration.

use std::net::IpAddr;

use segue::encap::{self, Carrier, Df, Fdb, GreOptions, SourcePorts, Tos, Ttl};
use segue::{gro, hash};

use super::kinds::{Choice, Df as PlanDf, Encap, Mode, Neighbour, Profile};
use super::plan::Plan;
use super::resolve::Ready;

/// Returns whether the tunnel accepts datagrams without UDP checksum over IPv6; VXLAN and Geneve have a separate word
/// for each direction.
pub(super) fn takes_zero_csum6(plan: &Plan) -> bool {
    if plan.mode.is_overlay() { plan.overlay.udp6zerocsumrx } else { !plan.encap_csum }
}

pub(super) fn engine_mode(plan: &Plan) -> encap::Mode {
    let gre = plan.gre.unwrap_or_default();
    let gre = GreOptions {
        ikey: gre.ikey,
        okey: gre.okey,
        icsum: gre.icsum,
        ocsum: gre.ocsum,
        iseq: gre.iseq,
        oseq: gre.oseq,
    };
    match plan.mode {
        Mode::Ipip => encap::Mode::Ipip,
        Mode::Sit => encap::Mode::Sit,
        Mode::Ip6tnl => encap::Mode::Ip,
        Mode::Gre => encap::Mode::Gre(gre),
        Mode::Gretap => encap::Mode::GreTap(gre),
        Mode::Vxlan | Mode::Geneve | Mode::Eth => encap::Mode::Ethernet,
    }
}

pub(super) fn engine_carrier(plan: &Plan) -> Carrier {
    let vni = plan.overlay.id.unwrap_or(0);
    match (plan.encap, plan.mode) {
        (_, Mode::Vxlan) => {
            Carrier::Vxlan { vni, remcsum: plan.overlay.remcsumtx, takes_remcsum: plan.overlay.remcsumrx }
        }
        (_, Mode::Geneve) => Carrier::Geneve { vni },
        (Encap::Gue, _) => Carrier::Gue { remcsum: plan.encap_remcsum },
        (Encap::Fou, _) => Carrier::Fou,
        (Encap::None, _) => Carrier::Bare,
    }
}

/// Returns the identity by which a tunnel recognises its packets among those of other tunnels on the same port.
pub fn identity(plan: &Plan) -> encap::Config {
    encap::Config::new(engine_mode(plan), engine_carrier(plan), plan.remote, plan.remote)
}

/// Returns the engine's configuration of a resolved plan.
pub(super) fn engine_config(ready: &Ready, slots: u16, seed: [u8; 16]) -> encap::Config {
    let plan = &ready.plan;
    let (mode, carrier) = (engine_mode(plan), engine_carrier(plan));
    let df = match (plan.mode.is_overlay(), plan.overlay.df, plan.pmtudisc) {
        (true, PlanDf::Unset, _) => Df::Unset,
        (true, PlanDf::Set, _) | (false, _, true) => Df::Set,
        (true, PlanDf::Inherit, _) | (false, _, false) => Df::Inherit,
    };
    // Raw sockets receive what this host's kernel has joined or left unfinished, and so do UDP sockets from its own
    // tunnel devices and from the in-kernel path of a tunnel's other end on this host.
    let unfinished = Some(u16::try_from(ready.mtu).unwrap_or(u16::MAX));
    encap::Config {
        dport: plan.dport,
        port: plan.port,
        csum: plan.encap_csum,
        ttl: plan.ttl.fixed().map_or(Ttl::Inherit, Ttl::Fixed),
        tos: match plan.tos {
            Choice::Fixed(tos) => Tos::Fixed(tos),
            Choice::Inherit | Choice::Auto => Tos::Inherit,
        },
        df,
        zero_csum6: takes_zero_csum6(plan),
        unfinished,
        slots: plan.sport.fixed().map_or(SourcePorts::Slots(slots), SourcePorts::Fixed),
        seed,
        ..encap::Config::new(mode, carrier, ready.local, plan.remote)
    }
}

/// Smallest number of tunnels on one port with which each gets a smaller flow table.
const MANY: usize = 16;
/// Number of flows for which each of many tunnels has room.
const FEW_FLOWS: usize = 32;

/// Returns the configuration of GRO for one of `members` tunnels.
pub(super) fn gro_config(plan: &Plan, members: usize, key: hash::Key) -> gro::Config {
    let profile = match plan.profile {
        Profile::Strict => gro::Profile::Strict,
        Profile::Linux => gro::Profile::linux(),
    };
    let usual = gro::Config::default();
    let max_flows = if members > MANY { FEW_FLOWS } else { usual.max_flows };
    gro::Config { profile, key, max_flows, ..usual }
}

/// Returns the forwarding table, if there are several remotes, and the remotes for frames without an entry: the first
/// one, and those with an entry for the zero address.
pub(super) fn forwarding(plan: &Plan, remotes: &[IpAddr], key: hash::Key) -> (Option<Fdb>, Vec<u16>) {
    if remotes.len() < 2 {
        return (None, Vec::new());
    }
    let number = |address: IpAddr| remotes.iter().position(|remote| *remote == address).unwrap_or(0) as u16;
    let (all, own): (Vec<&Neighbour>, Vec<&Neighbour>) = plan.overlay.fdb.iter().partition(|entry| entry.mac == [0; 6]);
    let own: Vec<_> = own.iter().map(|entry| (entry.mac, number(entry.remote))).collect();
    let mut flood: Vec<u16> = std::iter::once(0).chain(all.iter().map(|entry| number(entry.remote))).collect();
    flood.sort_unstable();
    flood.dedup();
    let entries = if plan.overlay.learning { plan.overlay.maxaddress as usize } else { 0 };
    let ageing = match plan.overlay.ageing {
        0 => u64::MAX,
        seconds => u64::from(seconds) * 1_000_000_000,
    };
    (Some(Fdb::new(key, entries, ageing, &own)), flood)
}
