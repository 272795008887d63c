//! Tests of the programs on the running kernel: they are loaded, and run on packets by `BPF_PROG_TEST_RUN`.

use std::net::IpAddr;

use segue::encap::{Carrier, Config, GreOptions, Mode};

use crate::{Error, Path};

/// Every kind of tunnel that both directions of the path carry, by outer family.
fn kinds() -> Vec<Config> {
    let key = Mode::Gre(GreOptions { ikey: Some(7), okey: Some(8), ..GreOptions::default() });
    let gre = Mode::Gre(GreOptions::default());
    let gue = Carrier::Gue { remcsum: false };
    let mut all = Vec::new();
    for (local, remote) in [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")] {
        let [local, remote]: [IpAddr; 2] = [local, remote].map(|text| text.parse().unwrap());
        for mode in [Mode::Ipip, Mode::Sit, Mode::Ip, gre, key] {
            for carrier in [Carrier::Bare, Carrier::Fou, gue] {
                let plain = Config { csum: false, zero_csum6: true, ..Config::new(mode, carrier, local, remote) };
                all.push(plain);
            }
        }
    }
    all
}

/// Loads the path, or notes why this machine cannot.
fn loaded(configs: &[Config]) -> Option<Path> {
    match Path::load(configs, &[50_000, 50_001]) {
        Ok(path) => Some(path),
        Err(Error::Refused(step, error)) if error.raw_os_error() == Some(libc::EPERM) => {
            segue_lab::skip_this_test(&format!("{step}: {error}"));
            None
        }
        Err(error) => panic!("{configs:?}: {error}"),
    }
}

#[test]
fn the_kernel_takes_the_programs_of_every_kind_and_they_remove_what_the_engine_adds() {
    for config in kinds() {
        let Some(path) = loaded(&[config]) else { return };
        assert_eq!(path.partial(), []);
        assert_eq!(path.counts(0).unwrap().received.units, 0, "the trials do not count");
    }
}
