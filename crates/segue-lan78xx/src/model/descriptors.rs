//! The model's USB descriptors (USB 3.2, section 9.6).

use crate::regs::{Chip, VENDOR, endpoint};
use crate::usb::Speed;

/// Descriptor type of a device.
const DEVICE: u8 = 1;
const CONFIGURATION: u8 = 2;
const INTERFACE: u8 = 4;
const ENDPOINT: u8 = 5;
const BOS: u8 = 15;
const CAPABILITY: u8 = 16;
const COMPANION: u8 = 48;

/// Class, subclass and protocol of device and interface: vendor-specific.
pub const CLASS: [u8; 3] = [0xff, 0, 0xff];
/// `bConfigurationValue` of the only configuration.
pub const CONFIGURATION_VALUE: u8 = 1;
/// Release number of the device.
pub const BCD_DEVICE: u16 = 0x0300;
/// Maximum number of packets in one burst, minus 1.
const MAX_BURST: u8 = 15;

/// Returns the descriptor for a `GET_DESCRIPTOR` request with this `wValue`, or `None` if there is none.
pub(super) fn find(chip: Chip, speed: Speed, value: u16) -> Option<Vec<u8>> {
    match ((value >> 8) as u8, value as u8) {
        (DEVICE, 0) => Some(device(chip, speed)),
        (CONFIGURATION, 0) => Some(configuration(speed)),
        (BOS, 0) if speed != Speed::Full => Some(bos()),
        _ => None,
    }
}

fn device(chip: Chip, speed: Speed) -> Vec<u8> {
    let (version, packet): (u16, u8) = match speed {
        // Packet size of the control endpoint; at SuperSpeed its base-2 exponent.
        Speed::Super => (0x0300, 9),
        Speed::High => (0x0210, 64),
        Speed::Full => (0x0200, 64),
    };
    let mut bytes = vec![18, DEVICE];
    bytes.extend(version.to_le_bytes());
    bytes.extend(CLASS);
    bytes.push(packet);
    for word in [VENDOR, chip.product(), BCD_DEVICE] {
        bytes.extend(word.to_le_bytes());
    }
    // No strings, one configuration.
    bytes.extend([0, 0, 0, 1]);
    bytes
}

fn configuration(speed: Speed) -> Vec<u8> {
    // Self powered, remote wakeup; 2 mA (8 mA at super speed).
    let mut bytes = vec![9, CONFIGURATION, 0, 0, 1, CONFIGURATION_VALUE, 0, 0xe0, 1];
    bytes.extend([9, INTERFACE, 0, 0, 3]);
    bytes.extend(CLASS);
    bytes.push(0);
    let bulk = speed.max_packet() as u16;
    let interval = if speed == Speed::Super { 6 } else { 4 };
    let ends = [
        (endpoint::BULK_IN, 2, bulk, 0, [MAX_BURST, 0, 0, 0]),
        (endpoint::BULK_OUT, 2, bulk, 0, [MAX_BURST, 0, 0, 0]),
        (endpoint::INTERRUPT, 3, 16, interval, [0, 0, 16, 0]),
    ];
    for (address, kind, packet, interval, companion) in ends {
        bytes.extend([7, ENDPOINT, address, kind]);
        bytes.extend(packet.to_le_bytes());
        bytes.push(interval);
        if speed == Speed::Super {
            bytes.extend([6, COMPANION]);
            bytes.extend(companion);
        }
    }
    let len = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn bos() -> Vec<u8> {
    let mut bytes = vec![5, BOS, 22, 0, 2];
    // USB 2.0 extension: no link power management.
    bytes.extend([7, CAPABILITY, 2, 0, 0, 0, 0]);
    // SuperSpeed capability: full, high and super speed; U1 and U2 exit latency 0, so that the host leaves link power
    // management alone.
    bytes.extend([10, CAPABILITY, 3, 0, 0x0e, 0, 1, 0, 0, 0]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_that_the_bytes_have() {
        for (speed, len) in [(Speed::Full, 39), (Speed::High, 39), (Speed::Super, 57)] {
            let bytes = find(Chip::Lan7800, speed, 0x0200).unwrap();
            assert_eq!((bytes.len(), bytes[2]), (len, len as u8));
            let (mut at, mut found) = (0, Vec::new());
            while at < bytes.len() {
                if bytes[at + 1] == ENDPOINT {
                    found.push(bytes[at + 2]);
                }
                at += usize::from(bytes[at]);
            }
            // The Linux driver takes the third for the interrupt endpoint, and knows the bulk endpoints by number.
            assert_eq!((at, found), (len, vec![0x81, 0x02, 0x83]));
            assert_eq!(find(Chip::Lan7800, speed, 0x0100).unwrap().len(), 18);
        }
        let bos = bos();
        assert_eq!((bos.len(), bos[2]), (22, 22));
        assert!(find(Chip::Lan7800, Speed::High, 0x0300).is_none(), "no strings");
    }
}
