//! The cases of the demonstration: paths from host A to host B.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::lane::{Ground, Lane, Prepared, StatSource};
use crate::process::checked_output;
use crate::{Encap, Family, Host, LabError, Mode, Options, Peer, Process, interrupt, link, reach, which, wireguard};

/// A row to measure: its name, and the set-up of the path between the hosts.
pub struct Case {
    name: String,
    setup: Box<Setup>,
}

type Setup = dyn FnOnce(&Ground<'_>) -> Result<Prepared, LabError>;

impl Case {
    /// Names of the built-in cases.
    pub const NAMES: &'static [&'static str] = &[
        "segue",
        "segue-plain",
        "segue-no-csum",
        "vxlan",
        "vxlan-no-csum",
        "link",
        "fastd",
        "wireguard-go",
        "segue-default",
        "fastpath-ipip",
        "fastpath-sit",
        "fastpath-gre",
        "fastpath-gue",
        "fastpath-vxlan",
    ];

    /// Returns the built-in case of a name in [`Case::NAMES`].
    pub fn named(name: &str) -> Result<Case, LabError> {
        let setup: fn(&Ground<'_>) -> Result<Prepared, LabError> = match name {
            "segue" => segue,
            "segue-plain" => segue_plain,
            "segue-no-csum" => segue_without_sums,
            "segue-default" => segue_default,
            "vxlan" => |ground| vxlan(ground, true),
            "vxlan-no-csum" => |ground| vxlan(ground, false),
            "link" => |_| Ok(Prepared::Ready(Lane::plain(0))),
            "fastd" => fastd,
            "wireguard-go" => wireguard::prepare,
            "fastpath-ipip" => |ground| fastpath(ground, "sgi0", &["mode", "ipip"]),
            "fastpath-sit" => |ground| fastpath(ground, "sgs0", &["mode", "sit"]),
            "fastpath-gre" => |ground| fastpath(ground, "sgg0", &["mode", "gre"]),
            "fastpath-gue" => |ground| {
                fastpath(ground, "sgu0", &["mode", "gre", "encap", "gue", "encap-dport", "6083", "noencap-csum"])
            },
            "fastpath-vxlan" => |ground| {
                let zero = ["noudpcsum", "udp6zerocsumtx", "udp6zerocsumrx"];
                fastpath(ground, "sgv0", &[&["mode", "vxlan", "id", "42", "dstport", "6085"], &zero[..]].concat())
            },
            _ => return Err(LabError::Usage(format!("`{name}` is not one of {}", Case::NAMES.join(", ")))),
        };
        Ok(Case::new(name, setup))
    }

    /// Creates a case from the caller's set-up. `setup` builds the path at both hosts and returns at once; the lab
    /// waits until datagrams pass.
    pub fn new(name: &str, setup: impl FnOnce(&Ground<'_>) -> Result<Prepared, LabError> + 'static) -> Case {
        Case { name: name.into(), setup: Box::new(setup) }
    }

    /// Returns the case's name in the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets up the path and waits until datagrams pass in both directions and all families.
    pub(crate) fn prepare(self, ground: &Ground<'_>) -> Result<Prepared, LabError> {
        let mut lane = match (self.setup)(ground)? {
            Prepared::Ready(lane) => lane,
            skipped => return Ok(skipped),
        };
        let begin = Instant::now();
        for family in ground.families {
            loop {
                interrupt::check()?;
                let (from, to) = (Peer::A.address(lane.net, *family), Peer::B.address(lane.net, *family));
                let short = Duration::from_millis(100);
                let Err(error) = reach((ground.a, from), (ground.b, to), short) else { break };
                let ended = lane.processes.iter_mut().any(|process| process.ended().is_some());
                if !ended && begin.elapsed() < lane.patience {
                    continue;
                }
                let why = if ended { "its program ended".into() } else { error.to_string() };
                return Err(LabError::NotReady { case: self.name, why, output: last_words(&mut lane.processes) });
            }
        }
        Ok(Prepared::Ready(lane))
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

fn last_words(processes: &mut [Process]) -> String {
    let said = |process: &mut Process| match process.last_words() {
        words if words.is_empty() => None,
        words => Some(format!("{}\n{words}", process.line())),
    };
    processes.iter_mut().filter_map(said).collect::<Vec<_>>().join("\n")
}

/// Sets up segue with all offloads: trains and remote checksum offload.
fn segue(ground: &Ground<'_>) -> Result<Prepared, LabError> {
    // FOU has no header that could carry the option.
    let extra: &[&str] = if ground.options.encap == Encap::Gue { &["encap-remcsum"] } else { &[] };
    segue_tunnel(ground, "sg0", 6080, extra)
}

/// Sets up segue with one packet per system call.
fn segue_plain(ground: &Ground<'_>) -> Result<Prepared, LabError> {
    segue_tunnel(ground, "sgp0", 6081, &["gso", "off", "gro", "off", "noencap-remcsum"])
}

/// Sets up segue with all offloads and no outer checksums.
fn segue_without_sums(ground: &Ground<'_>) -> Result<Prepared, LabError> {
    segue_tunnel(ground, "sgz0", 6084, &["noencap-csum", "noencap-remcsum"])
}

/// Sets up segue as the first command of its README does, without options.
fn segue_default(ground: &Ground<'_>) -> Result<Prepared, LabError> {
    start_segue(ground, "sgd0", |end| {
        let fixed = ["tunnel", "dev", "sgd0", "remote", &ground.outer(end.other())].map(str::to_owned);
        let addresses = ground.families.iter().flat_map(|family| ["addr".to_owned(), end.prefix(ground.net, *family)]);
        fixed.into_iter().chain(addresses).collect()
    })
}

/// Sets up segue with the in-kernel path.
fn fastpath(ground: &Ground<'_>, device: &str, words: &[&str]) -> Result<Prepared, LabError> {
    let carries = |family: Family| match words {
        [_, "ipip", ..] => family == Family::V4,
        [_, "sit", ..] => family == Family::V6,
        _ => true,
    };
    if let Some(family) = ground.families.iter().find(|family| !carries(**family)) {
        return Ok(Prepared::Skipped(format!("its mode does not carry IPv{family}")));
    }
    if let Some(why) = without_path(ground) {
        return Ok(Prepared::Skipped(why));
    }
    start_segue(ground, device, |end| {
        let (local, remote) = (ground.outer(end), ground.outer(end.other()));
        let fixed = ["tunnel", "dev", device, "local", &local, "remote", &remote, "fastpath", "require"];
        let addresses = ground.families.iter().flat_map(|family| ["addr".to_string(), end.prefix(ground.net, *family)]);
        fixed.iter().chain(words).map(ToString::to_string).chain(addresses).collect()
    })
}

/// Returns the reason why the kernel cannot carry tunnels here, in the words of `segue doctor`; `None` if it can, or if
/// that is unknown.
fn without_path(ground: &Ground<'_>) -> Option<String> {
    let program = which(&ground.options.segue)?;
    // With a missing feature `doctor` fails, and has printed the table.
    let output = ground.a.command(program).args(["doctor", "-j"]).output().ok()?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let check = told["checks"].as_array()?.iter().find(|check| check["name"] == "fastpath")?;
    let found = check["found"].as_str().filter(|found| found.contains("cannot be loaded"))?;
    Some(format!("{found}: {}", check["why"].as_str().unwrap_or_default()))
}

fn segue_tunnel(ground: &Ground<'_>, device: &str, port: u16, extra: &[&str]) -> Result<Prepared, LabError> {
    start_segue(ground, device, |end| segue_words(ground, end, device, port, extra))
}

/// Starts segue with the given words on both hosts.
fn start_segue(ground: &Ground<'_>, device: &str, words: impl Fn(Peer) -> Vec<String>) -> Result<Prepared, LabError> {
    let program = &ground.options.segue;
    let program = which(program).ok_or_else(|| LabError::System {
        what: format!("run {}", program.display()),
        source: io::Error::from_raw_os_error(libc::ENOENT),
        hint: "cargo build --release, and give the path of target/release/segue".into(),
    })?;
    let program = fs::canonicalize(&program).unwrap_or(program);
    let mut lane = Lane::plain(ground.net);
    for end in [Peer::A, Peer::B] {
        let mut command = ground.host(end).command(&program);
        command.args(words(end));
        lane.processes.push(Process::spawn(command, b"")?);
    }
    lane.stat = Some(StatSource { program, device: device.into() });
    Ok(Prepared::Ready(lane))
}

/// Returns the command line of `segue`, without the program.
fn segue_words(ground: &Ground<'_>, end: Peer, device: &str, port: u16, extra: &[&str]) -> Vec<String> {
    let Options { mode, encap, .. } = ground.options;
    let (local, remote, port) = (ground.outer(end), ground.outer(end.other()), port.to_string());
    let fixed = [
        ["dev", device],
        ["mode", mode.as_str()],
        ["local", &local],
        ["remote", &remote],
        ["encap", encap.as_str()],
        ["encap-dport", &port],
    ];
    let addresses = Family::ALL.iter().filter(|family| mode.carries(**family));
    let addresses = addresses.flat_map(|family| ["addr".to_string(), end.prefix(ground.net, *family)]);
    let fixed = fixed.iter().flatten().chain(extra).map(ToString::to_string);
    std::iter::once("tunnel".to_string()).chain(fixed).chain(addresses).collect()
}

/// Sets up the kernel's VXLAN, with outer UDP checksums or without.
fn vxlan(ground: &Ground<'_>, sums: bool) -> Result<Prepared, LabError> {
    for end in [Peer::A, Peer::B] {
        let made = make_vxlan(ground.host(end), ("vx0", link::DEVICE), end, ground.options.outer, sums)?;
        if let Some(why) = made {
            return Ok(Prepared::Skipped(why));
        }
        ground.configure(end, "vx0")?;
    }
    Ok(Prepared::Ready(Lane::plain(ground.net)))
}

/// Creates a VXLAN device with outer UDP checksums over another device, which has the addresses of net 0. Returns why
/// it cannot be made, if the kernel has no VXLAN.
pub(crate) fn kernel_vxlan(
    host: &Host,
    device: (&str, &str),
    end: Peer,
    outer: Family,
) -> Result<Option<String>, LabError> {
    make_vxlan(host, device, end, outer, true)
}

fn make_vxlan(
    host: &Host,
    (name, over): (&str, &str),
    end: Peer,
    outer: Family,
    sums: bool,
) -> Result<Option<String>, LabError> {
    let (local, remote) = (end.address(0, outer).to_string(), end.other().address(0, outer).to_string());
    let mut words = vec!["link", "add", name, "type", "vxlan", "id", "42", "local", &local, "remote", &remote];
    words.extend(["dev", over, "dstport", "4789"]);
    // Over IPv6 checksums are on unless taken away, and the word `udpcsum` is refused.
    match (outer, sums) {
        (Family::V4, true) => words.push("udpcsum"),
        (Family::V4, false) => words.push("noudpcsum"),
        (Family::V6, true) => {}
        (Family::V6, false) => words.extend(["udp6zerocsumtx", "udp6zerocsumrx"]),
    }
    match host.run("ip", &words) {
        Err(LabError::Command { output, .. }) if no_such_kind(&output) => {
            Ok(Some(format!("this kernel has no VXLAN ({output})")))
        }
        other => other.map(|_| None),
    }
}

/// Returns whether `ip` says that the kernel has no such kind of device.
pub(crate) fn no_such_kind(output: &str) -> bool {
    output.contains("not supported") || output.contains("Unknown device type")
}

/// Sets up fastd with method `null` (neither encryption nor authentication) in tun mode: the comparable user-space
/// tunnel.
fn fastd(ground: &Ground<'_>) -> Result<Prepared, LabError> {
    if which("fastd").is_none() {
        return Ok(Prepared::Skipped("fastd is not installed (apt install fastd)".into()));
    }
    let key = |host: &Host, input: &str, words: &[&str]| -> Result<String, LabError> {
        let mut command = host.command("fastd");
        command.args(words).arg("--machine-readable");
        let mut process = Process::spawn(command, input.as_bytes())?;
        if process.wait(Duration::from_secs(5))?.success() {
            return Ok(process.stdout().trim().to_string());
        }
        Err(process.failure("no key"))
    };
    let secrets = [key(ground.a, "", &["--generate-key"])?, key(ground.b, "", &["--generate-key"])?];
    let public = |index: usize| {
        let config = format!("secret \"{}\";\n", secrets[index]);
        key(ground.a, &config, &["--show-key", "-c", "-"])
    };
    let publics = [public(0)?, public(1)?];
    // The outer headers, UDP and fastd's own, rounded down to what its manual uses.
    let mtu = if ground.options.outer == Family::V4 { 1450 } else { 1430 };
    let mut lane = Lane { patience: Duration::from_secs(15), ..Lane::plain(ground.net) };
    for (index, end) in [Peer::A, Peer::B].into_iter().enumerate() {
        let place = |end: Peer| match ground.options.outer {
            Family::V4 => format!("{}:6082", ground.outer(end)),
            Family::V6 => format!("[{}]:6082", ground.outer(end)),
        };
        let config = format!(
            "mode tun; interface \"fd0\"; mtu {mtu}; method \"null\"; log level warn;\nbind {};\nsecret \"{}\";\n\
             peer \"other\" {{ key \"{}\"; remote {}; }}\n",
            place(end),
            secrets[index],
            publics[1 - index],
            place(end.other())
        );
        let mut command = ground.host(end).command("fastd");
        command.args(["-c", "-"]);
        let mut process = Process::spawn(command, config.as_bytes())?;
        ground.wait_for_device(end, "fd0", &mut process)?;
        ground.configure(end, "fd0")?;
        lane.processes.push(process);
    }
    Ok(Prepared::Ready(lane))
}

/// Returns whether a case of this name needs the program `segue`.
pub(crate) fn needs_segue(name: &str) -> bool {
    name.starts_with("segue") || name.starts_with("fastpath")
}

/// Returns the first line of `segue --version`.
pub(crate) fn segue_version(program: &Path) -> Option<String> {
    let mut command = std::process::Command::new(which(program)?);
    let text = checked_output(command.arg("--version")).ok()?;
    text.lines().next().map(|line| line.trim().to_string())
}

/// Returns a tunnel's mode, encapsulation and outer family in words.
pub(crate) fn shape(mode: Mode, encap: Encap, outer: Family) -> String {
    format!("{mode} in {encap} over IPv{outer}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_case_names_the_known_ones() {
        let error = Case::named("vxlam").unwrap_err();
        assert_eq!(error.to_string(), format!("`vxlam` is not one of {}", Case::NAMES.join(", ")));
        assert!(Case::NAMES.iter().all(|name| Case::named(name).unwrap().name() == *name));
    }
}
