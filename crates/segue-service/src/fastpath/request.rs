//! Requests to the in-kernel path.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::table::Table;
use super::tunnel::Tunnel;
use crate::tunnel::kinds::Fastpath as Mode;

/// The settings of the in-kernel path for the tunnels of one outside port.
#[derive(Debug)]
pub struct Request {
    /// Value of the keyword `fastpath`.
    pub mode: Mode,
    /// The tunnels with one remote.
    pub tunnels: Vec<Tunnel>,
    /// The tunnel with a peer table, instead of tunnels with one remote.
    pub table: Option<Table>,
    /// Name of the outside port in statistics.
    pub outside: &'static str,
    /// UDP source ports of the daemon's sockets.
    pub sources: Vec<u16>,
    /// Setting that needs the daemon, as the reason why the in-kernel path is not taken; `None` if there is none.
    pub prevented: Option<String>,
}

impl Request {
    /// Returns the names of the interfaces.
    pub(super) fn devs(&self) -> Vec<&str> {
        let table = self.table.iter().map(|table| table.dev.as_str());
        self.tunnels.iter().map(|tunnel| tunnel.dev.as_str()).chain(table).collect()
    }

    /// Returns the local addresses, each once.
    pub(super) fn locals(&self) -> BTreeSet<IpAddr> {
        let table = self.table.iter().filter_map(Table::config);
        self.tunnels.iter().map(|tunnel| tunnel.config).chain(table).map(|config| config.local).collect()
    }

    /// Returns whether the outer packets are IPv4.
    pub(super) fn is_v4(&self) -> bool {
        let config = self.tunnels.first().map(|tunnel| tunnel.config);
        config.or_else(|| self.table.as_ref()?.config()).is_some_and(|config| config.local.is_ipv4())
    }
}
