//! `segue lan78xx up`: an adapter as a network interface.

use segue_control::error::{Error, Kind, printable};
use segue_host::netlink::Netlink;
use segue_lan78xx::model::Config as ModelConfig;
use segue_service::adapter::plan::Plan;
use segue_service::adapter::up::mac_text;
use segue_service::adapter::usb::Usb;
use segue_service::daemon::{self, Start};
use segue_service::tap::Tap;

use super::args;
use super::chip::{config, mac};
use super::list::server_address;
use crate::out::Out;

/// Returns the adapter that the command line names: one of this machine, one of a USB/IP server, or a model.
fn usb(args: &args::Up) -> Result<Usb, Error> {
    let (text, wire) = (&args.usb[..], args.wire.as_deref());
    let wrong = |why: &str| {
        let message = format!("`{}` is not an adapter", printable(text));
        Err(Error::new(Kind::BadValue, message, "--usb usbip://HOST/BUSID, --usb model").why(why).about(text))
    };
    if text == "model" {
        let wire = wire.map(|wire| Tap::parse(wire, 9000)).transpose()?;
        return Ok(Usb::Model { wire, config: model(args)? });
    }
    for (option, is_given, hint, why) in [
        ("--wire", wire.is_some(), "--usb model --wire tap:cable0", "other adapters have a cable"),
        ("--chip", args.chip.is_some(), "--usb model --chip lan7850 --speed high", "other adapters have a chip"),
        ("--speed", args.speed.is_some(), "--usb model --speed high", "other adapters have a bus"),
        ("--paced", args.paced, "--usb model --paced", "other adapters have a cable"),
    ] {
        if is_given {
            return Err(Error::new(Kind::Conflict, format!("`{option}` without a model"), hint).why(why));
        }
    }
    let is_port = |text: &str| {
        let (bus, port) = text.split_once('-').unwrap_or_default();
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits(bus) && port.split('.').all(digits)
    };
    if text == "auto" || is_port(text) {
        return Ok(Usb::Here((text != "auto").then(|| text.to_owned())));
    }
    let Some(rest) = text.strip_prefix("usbip://") else {
        return wrong("it is auto, a port such as 1-1.4, usbip://HOST/BUSID, or model");
    };
    let Some((host, bus_id)) = rest.split_once('/') else { return wrong("the bus id is missing, such as 1-1") };
    if bus_id.is_empty() || bus_id.len() > 31 || bus_id.contains('/') {
        return wrong("a bus id is like 1-1");
    }
    Ok(Usb::Usbip { server: server_address(host).map_err(|error| error.about(text))?, bus_id: bus_id.to_owned() })
}

/// Returns the settings of a model in this process.
fn model(args: &args::Up) -> Result<ModelConfig, Error> {
    let chip = args.chip.clone().unwrap_or_else(|| "lan7800".to_owned());
    // That chip has no other speed.
    let usual = if chip == "lan7850" { "high" } else { "super" };
    let speed = args.speed.clone().unwrap_or_else(|| usual.to_owned());
    let mac = mac_text(ModelConfig::default().mac);
    config(&args::Chip { chip, speed, mac, paced: args.paced })
}

/// Returns the name of the interface: `--dev NAME` or `dev NAME`.
fn name(args: &args::Up) -> Result<&str, Error> {
    let hint = "segue lan78xx up dev lan0";
    match (&args.words[..], &args.dev) {
        ([], None) => Ok("lan0"),
        ([], Some(name)) => Ok(name),
        ([dev, name], None) if dev == "dev" => Ok(name),
        ([dev, _], Some(_)) if dev == "dev" => {
            Err(Error::new(Kind::Conflict, "the interface is named twice", hint).why("`dev` and `--dev` are the same"))
        }
        ([dev], _) if dev == "dev" => {
            Err(Error::new(Kind::Missing, "`dev` needs a name", hint).why("the interface's name follows it"))
        }
        ([first, rest @ ..], _) => {
            let word = rest.get(1).filter(|_| first == "dev").unwrap_or(first);
            let text = format!("unknown word `{}`", printable(word));
            Err(Error::new(Kind::UnknownWord, text, hint).why("besides options there is only dev NAME"))
        }
    }
}

/// Returns the plan of the command line.
fn plan(args: &args::Up) -> Result<Plan, Error> {
    let usb = usb(args)?;
    let tap = Tap::interface(name(args)?, args.mtu)?;
    let mut plan = Plan::new(usb, tap);
    plan.mac = args.mac.as_deref().map(mac).transpose()?;
    plan.standard = args.mode == "standard";
    plan.no_gro = args.no_gro;
    plan.no_lso = args.no_lso;
    plan.rx_transfers = args.rx_transfers;
    plan.tx_transfers = args.tx_transfers;
    plan.budget = args.budget;
    plan.pause = !args.no_pause;
    plan.eee = args.eee;
    plan.set.clone_from(&args.set);
    plan.is_weak = args.weak_sandbox;
    Ok(plan)
}

/// Checks the options as far as that needs no adapter, and returns the name of the interface; for a configuration file.
pub(crate) fn checked(args: &args::Up) -> Result<String, Error> {
    Ok(plan(args)?.tap.name)
}

/// Runs `segue lan78xx up`.
pub(super) fn run(args: &args::Up, out: &Out) -> Result<(), Error> {
    let watched = daemon::follow(args.supervised, false)?;
    let plan = plan(args)?;
    let netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for interfaces", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    daemon::up(&plan, netlink, Start { watched, is_weak: args.weak_sandbox }, &out.staying())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use segue_lan78xx::usb::Speed;
    use segue_service::daemon::Daemon;

    use super::*;

    fn args(words: &str) -> args::Up {
        use clap::Parser;
        #[derive(Parser)]
        struct CommandLine {
            #[command(flatten)]
            up: args::Up,
        }
        CommandLine::parse_from(std::iter::once("up").chain(words.split(' ').filter(|word| !word.is_empty()))).up
    }

    #[test]
    fn an_adapter_is_at_a_usbip_server_or_a_model() {
        let at = |text: &str| usb(&args::Up { usb: text.to_owned(), ..args("") });
        let parsed = at("usbip://198.18.0.1/1-1").unwrap();
        assert_eq!(parsed, Usb::Usbip { server: "198.18.0.1:3240".to_owned(), bus_id: "1-1".to_owned() });
        assert_eq!(at("model").unwrap(), Usb::Model { wire: None, config: ModelConfig::default() });
        assert_eq!(at("auto").unwrap(), Usb::Here(None));
        assert_eq!(at("1-1.4").unwrap(), Usb::Here(Some("1-1.4".to_owned())));
        for bad in
            ["", "1", "1-", "-1", "1-1.", "1-a", "usbip://", "usbip://a", "usbip://a/", "usbip://a/1/2", "http://a/1"]
        {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_model_is_what_was_asked_for_and_other_adapters_are_what_they_are() {
        let config = |words: &str| match usb(&args(words)) {
            Ok(Usb::Model { config, .. }) => Some((config.chip.name(), config.speed, config.paced)),
            _ => None,
        };
        assert_eq!(config("--usb model"), Some(("LAN7800", Speed::Super, false)));
        assert_eq!(config("--usb model --chip lan7850 --paced"), Some(("LAN7850", Speed::High, true)));
        assert_eq!(config("--usb model --chip lan7801 --speed full"), Some(("LAN7801", Speed::Full, false)));
        assert_eq!(config("--usb model --chip lan7850 --speed super"), None);
        for option in ["--wire tap:c0", "--chip lan7800", "--speed high", "--paced"] {
            for usb in ["auto", "1-1", "usbip://a/1-1"] {
                let refused = super::usb(&args(&format!("--usb {usb} {option}"))).map(|_| ()).unwrap_err();
                assert_eq!(refused.kind, Kind::Conflict, "{usb} {option}");
            }
        }
    }

    #[test]
    fn the_interface_is_named_with_two_dashes_or_without() {
        let named = |words: &str| name(&args(words)).map(str::to_owned).map_err(|error| error.kind);
        for words in ["dev foo", "--dev foo", "--usb model dev foo --mtu 9000", "dev foo --usb model"] {
            assert_eq!(named(words), Ok("foo".to_owned()), "{words}");
        }
        assert_eq!(named(""), Ok("lan0".to_owned()));
        for (words, kind) in [
            ("dev", Kind::Missing),
            ("foo", Kind::UnknownWord),
            ("dev foo bar", Kind::UnknownWord),
            ("foo dev bar", Kind::UnknownWord),
            ("dev foo --dev bar", Kind::Conflict),
        ] {
            assert_eq!(named(words), Err(kind), "{words}");
        }
        for bad in ["0123456789abcdef", "a/b", "", ".."] {
            let error = Tap::interface(bad, 1500).unwrap_err();
            assert!(error.kind == Kind::BadValue && error.hint.contains("--dev"), "{bad}");
        }
    }

    #[test]
    fn there_is_one_budget_the_weight_of_the_poll_loop() {
        for (words, weight) in
            [("", "64"), ("--budget 7", "7"), ("--mode standard", "256"), ("--mode standard --budget 300", "300")]
        {
            let plan = plan(&args(words)).unwrap();
            let knobs = segue_service::daemon::knobs::SharedKnobs::new(Arc::new(plan.knobs().unwrap())).list();
            for name in ["net.napi.dev.adapter.weight", "net.napi.dev.lan0.weight"] {
                let knob = knobs.iter().find(|knob| knob.name == name).unwrap();
                assert_eq!(knob.value.to_string(), weight, "{words} {name}");
            }
            for speed in [Speed::Full, Speed::High, Speed::Super] {
                assert_eq!(plan.config(speed).budget, None, "{words}");
            }
        }
        let named = plan(&args("--mac 02:00:00:00:00:07")).unwrap();
        assert_eq!(named.config(Speed::High).mac, Some([2, 0, 0, 0, 0, 7]));
    }

    #[test]
    fn an_mtu_that_no_driver_takes_is_a_wrong_value() {
        let kind = |mtu: u32, speed| {
            let plan = plan(&args(&format!("--mtu {mtu}"))).unwrap();
            plan.check_mtu(speed).map_err(|error| (error.kind, error.hint))
        };
        assert_eq!(kind(1006, Speed::Super), Err((Kind::BadValue, "--mtu 1005 or --mtu 1007".to_owned())));
        assert_eq!((kind(494, Speed::Super), kind(494, Speed::High).is_err()), (Ok(()), true));
        assert_eq!(kind(1500, Speed::Full), Ok(()));
    }
}
