//! Models of an adapter, and hardware addresses, from the command line.

use segue_control::error::{Error, Kind, printable};
use segue_lan78xx::model::Config;
use segue_lan78xx::regs::Chip;
use segue_lan78xx::usb::Speed;

use super::args;

/// Returns the model that the command line describes.
pub(super) fn config(args: &args::Chip) -> Result<Config, Error> {
    let chip = match args.chip.as_str() {
        "lan7801" => Chip::Lan7801,
        "lan7850" => Chip::Lan7850,
        _ => Chip::Lan7800,
    };
    let speed = match args.speed.as_str() {
        "full" => Speed::Full,
        "high" => Speed::High,
        _ => Speed::Super,
    };
    if chip == Chip::Lan7850 && speed == Speed::Super {
        let text = "`--chip lan7850` with `--speed super`";
        return Err(Error::new(Kind::Conflict, text, "--chip lan7850 --speed high")
            .why("that chip has USB 2.0 only")
            .about(&args.speed));
    }
    Ok(Config { chip, speed, mac: mac(&args.mac)?, paced: args.paced, ..Config::default() })
}

/// Parses a unicast MAC address.
pub(super) fn mac(text: &str) -> Result<[u8; 6], Error> {
    let parts: Vec<&str> = text.split(':').collect();
    let bytes: Option<Vec<u8>> = parts
        .iter()
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2 && !part.starts_with('+')))
        .collect();
    match bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()) {
        Some(mac) if segue::wire::ethernet::is_station(mac) => Ok(mac),
        _ => {
            let message = format!("`{}` is no address of an adapter", printable(text));
            Err(Error::new(Kind::BadValue, message, "--mac 02:78:00:00:00:01")
                .why("six bytes, and no multicast")
                .about(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapters_address_is_six_bytes_and_no_multicast() {
        assert_eq!(mac("02:78:00:00:00:aF").unwrap(), [2, 0x78, 0, 0, 0, 0xaf]);
        for bad in [
            "",
            "02",
            "02:78:00:00:00",
            "02:78:00:00:00:01:02",
            "01:00:00:00:00:01",
            "00:00:00:00:00:00",
            "+2:78:00:00:00:01",
            "2:78:0:0:0:1",
        ] {
            assert!(mac(bad).is_err(), "{bad}");
        }
    }
}
