//! The settings of a bridge.

use segue::gro;

use crate::knobs::{Dial, Knob};
use crate::napi::{Sharing, tune_weight};
use crate::tuning::{EgressSettings, GroSettings, Protocols};

/// Default time after which a silent station is forgotten, seconds (IEEE 802.1Q, table 8-6).
const AGEING_S: u64 = 300;
/// Default for the number of stations that are learned at a port.
const MAX_LEARNED: u64 = 1024;
/// Default limit of flooded packets of a port, per second.
const FLOOD_LIMIT: u64 = 10_000;
/// Default for the bytes that a port may send in its turn. Overdrafts are carried over.
const QUANTUM: u64 = 128 << 10;

/// The settings of a bridge.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) protocols: Protocols,
    pub(super) ports: Vec<PortSettings>,
    /// Budget and sleep of the loop; weights are those of the ports.
    pub(super) sharing: Sharing,
    pub(super) ageing_s: u64,
}

/// The settings of one port.
#[derive(Clone, Debug)]
pub(super) struct PortSettings {
    pub(super) name: String,
    pub(super) egress: EgressSettings,
    pub(super) gro: Option<GroSettings>,
    pub(super) weight: u64,
    pub(super) quantum: u64,
    pub(super) max_learned: u64,
    pub(super) flood_limit: u64,
}

impl Settings {
    /// Returns the initial settings for the named ports and this GRO; `weight` is the number of packets of one poll of
    /// each port.
    pub(super) fn new(ports: impl Iterator<Item = (String, Option<gro::Config>)>, weight: usize) -> Settings {
        let sharing = Sharing::new(weight);
        let port = |(name, gro): (String, Option<gro::Config>)| PortSettings {
            name,
            egress: EgressSettings::default(),
            gro: gro.map(GroSettings::new),
            weight: sharing.weights[0],
            quantum: QUANTUM,
            max_learned: MAX_LEARNED,
            flood_limit: FLOOD_LIMIT,
        };
        Settings { protocols: Protocols::default(), ports: ports.map(port).collect(), sharing, ageing_s: AGEING_S }
    }

    pub(super) fn tune(&mut self, dial: &mut Dial<'_>) {
        let Settings { protocols, ports, sharing, ageing_s } = self;
        protocols.tune(dial, ports.iter().any(|port| port.gro.is_some()));
        for port in ports.iter_mut() {
            port.egress.tune(dial, &port.name);
        }
        for PortSettings { name, gro, .. } in ports.iter_mut() {
            if let Some(gro) = gro {
                gro.tune(dial, name);
            }
        }
        sharing.tune_around(dial, |dial| {
            for PortSettings { name, weight, quantum, .. } in ports.iter_mut() {
                tune_weight(dial, name, weight);
                let bytes = || {
                    let help = "bytes that this port may send in its turn; other ports with packets come then";
                    Knob::number(format!("net.napi.dev.{name}.quantum"), (1514, 16 << 20), "bytes", help)
                };
                dial.number(bytes, quantum);
            }
        });
        let ageing = || {
            let help = "time after which a silent station is forgotten";
            Knob::number("net.bridge.ageing_s".to_owned(), (1, 86_400), "s", help)
        };
        dial.number(ageing, ageing_s);
        for PortSettings { name, max_learned, flood_limit, .. } in ports.iter_mut() {
            let knob = |key: &str| format!("net.bridge.dev.{name}.{key}");
            let stations = || {
                let help = "most stations that are learned at this port; 0 learns none";
                Knob::number(knob("max_learned"), (0, 65_535), "stations", help)
            };
            dial.number(stations, max_learned);
            let packets = || {
                let help = "most packets per second from this port that are flooded; 0 floods none";
                Knob::number(knob("flood_limit"), (0, 100_000_000), "packets/s", help)
            };
            dial.number(packets, flood_limit);
        }
    }
}
