//! What tunnels are made of, and their knobs.

use std::net::IpAddr;

use segue::encap::{Decapsulator, Encapsulator, Fdb, OuterCsum};
use segue::gro;
use segue_port::Port;

use crate::knobs::{Dial, Knobs};
use crate::tuning::{Remcsum, Settings};

/// The knobs that tunnels between ports of these names have, before they are made; `remcsum` where one of them is made with
/// remote checksum offload, `budget` as in [`Outside`].
pub fn knobs(insides: &[&str], outside: &str, gro: Option<gro::Config>, remcsum: bool, budget: usize) -> Knobs {
    let remcsum = if remcsum { Remcsum::Can(true) } else { Remcsum::Never };
    let settings = |inside: &&str| Settings::new([*inside, outside].map(str::to_owned), [gro, None], remcsum, budget);
    // Joining goes by the name of the port at which trains appear, as its counters do.
    let mut all: Vec<Settings> = insides.iter().map(settings).collect();
    Knobs::list(|dial| tune(&mut all, dial))
}

/// The first has all settings, of the others those of their own interface are asked for.
pub(super) fn tune(settings: &mut [Settings], dial: &mut Dial<'_>) {
    if let Some((first, others)) = settings.split_first_mut() {
        first.tune(dial);
        others.iter_mut().for_each(|other| other.tune_inside(dial, first));
    }
}

/// The outside of a pipeline.
pub struct Outside {
    /// Name of the port in statistics.
    pub name: String,
    /// The datagram port. Its peers are the remotes of all tunnels, one tunnel after the other.
    pub port: Box<dyn Port>,
    /// What the port vouches for on every datagram it delivers that carries a remote checksum option.
    pub csum: OuterCsum,
    /// Packets or bursts taken from one port in one round: the weight that all begin with.
    pub budget: usize,
    /// Most pages of memory to receive into.
    pub pages: usize,
}

/// What one tunnel is made of.
pub struct Parts {
    /// Name of the inside port in statistics: the interface.
    pub inside_name: String,
    /// The packet port inside.
    pub inside: Box<dyn Port>,
    /// Puts headers on.
    pub encap: Encapsulator,
    /// Takes headers off.
    pub decap: Decapsulator,
    /// Whose datagrams are taken. Everything goes to the first, or, where frames are inside and there is a forwarding table,
    /// where that says.
    pub remotes: Vec<IpAddr>,
    /// Which remote has which Ethernet address. Frames for groups and for addresses that nobody knows go to `flood`.
    pub fdb: Option<Fdb>,
    /// Which of the remotes have all frames that have no remote of their own.
    pub flood: Vec<u16>,
    /// How to join what comes in, which can then be changed and switched off as it runs; `None` leaves packets single for
    /// good.
    pub gro: Option<gro::Config>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("inside", &self.inside_name)
            .field("remotes", &self.remotes)
            .finish_non_exhaustive()
    }
}
