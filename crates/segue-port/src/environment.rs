//! The environment variable `SEGUE_OFFLOAD`, which switches trains off for one run of a program, to find out without a
//! rebuild whether an offload is at fault.
//!
//! Only [`tun::Tun::open`](crate::tun::Tun::open), [`udp::Sender::new`](crate::udp::Sender::new) and
//! [`udp::Receiver::new`](crate::udp::Receiver::new) read it. What a program configures itself stays as it is.

use std::ffi::OsStr;

/// Name of the environment variable that switches offloads off.
const NAME: &str = "SEGUE_OFFLOAD";

/// Trains that the variable leaves switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offloads {
    /// Trains of TUN and TAP devices.
    pub(crate) tun: bool,
    /// UDP trains of TUN and TAP devices (`TUN_F_USO4`, `TUN_F_USO6`).
    pub(crate) uso: bool,
    /// Runs of datagrams of UDP sockets: UDP_SEGMENT and UDP_GRO.
    pub(crate) udp: bool,
}

impl Offloads {
    const ALL: Offloads = Offloads { tun: true, uso: true, udp: true };

    /// Returns the setting in the environment of this process.
    pub(crate) fn of_environment() -> Offloads {
        std::env::var_os(NAME).map_or(Offloads::ALL, |words| Offloads::of(&words))
    }

    /// Returns the setting for a value of the variable: `0`, or words that are separated by commas.
    fn of(value: &OsStr) -> Offloads {
        let mut offloads = Offloads::ALL;
        let value = value.to_string_lossy();
        for word in value.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "0" => offloads = Offloads { tun: false, uso: false, udp: false },
                "-tun" => (offloads.tun, offloads.uso) = (false, false),
                "-uso" => offloads.uso = false,
                "-udp" => offloads.udp = false,
                "1" => {}
                word => notice!(warn, id = "offload", word, "{NAME} has 0, -tun, -uso and -udp; this word is ignored"),
            }
        }
        if offloads != Offloads::ALL {
            notice!(info, id = "offload", ?offloads, "{NAME} switches trains off");
        }
        offloads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_switch_trains_off_and_others_nothing() {
        let of = |value: &str| {
            let Offloads { tun, uso, udp } = Offloads::of(OsStr::new(value));
            (tun, uso, udp)
        };
        assert_eq!(["0", "-tun,-udp", " -udp , -tun "].map(of), [(false, false, false); 3]);
        assert_eq!(["-tun", "-uso", "-udp"].map(of), [(false, false, true), (true, false, true), (true, true, false)]);
        assert_eq!(["", "1", "-USO", "uso", "off"].map(of), [(true, true, true); 5]);
    }
}
