//! The file of `segue run`: a `[[tunnel]]`, `[[gateway]]` or `[[lan78xx]]` for each instance, and one `[metrics]`. A
//! key is a keyword or an option of the command, so that one table describes their values; `net.` begins a knob.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::ops::Range;

use segue_control::error::together;
use segue_control::error::{Error, Kind as ErrorKind, printable};
use segue_control::knobs::{self, Knob, Wrong};
use segue_host::names::Names;
use segue_host::netlink::Netlink;
use segue_host::sys;
use segue_service::daemon::knobs as daemon_knobs;
use segue_service::gateway::plan as gateway_plan;
use segue_service::gateway::start as gateway_start;
use segue_service::supervise::spec::{InstancePlan, InstanceSpec, Kind, Socket, Token};
use segue_service::tunnel::group::{self, Group};
use segue_service::tunnel::plan::Plan;
use segue_service::tunnel::resolve::Ready;
use segue_service::tunnel::{show, start};
use toml::de::{DeTable, DeValue};

use super::command::{command_line, located, usage_error};
use super::keys;
use super::source::{MOST_ERRORS, Text};

/// Returns an error that points at the name or value of the assignment with index `at`.
fn wrong_knob(spec: &InstanceSpec, text: &Text, at: usize, wrong: &Wrong) -> Error {
    let span = spec
        .assignments
        .get(at)
        .map_or(&spec.header, |assignment| if wrong.is_name { &assignment.name.span } else { &assignment.value.span });
    let mut error = text.error(span, wrong.message.clone(), wrong.note.clone());
    error.hint = wrong.good.clone();
    if let Some(source) = &mut error.source {
        source.nearest.clone_from(&wrong.nearest);
    }
    error
}

/// Checks whether an instance can run on this host, and describes it. Changes nothing.
pub(super) fn check(spec: &InstanceSpec, text: &Text, netlink: &mut Netlink) -> Result<Checked, Refusal> {
    let at_words = |error: Error| {
        let is_of_host = matches!(
            error.kind,
            ErrorKind::NotFound
                | ErrorKind::Unreachable
                | ErrorKind::InUse
                | ErrorKind::NoPermission
                | ErrorKind::Denied
                | ErrorKind::NoTun
                | ErrorKind::System
        );
        Refusal { error: Box::new(located(&spec.tokens, &spec.header, text, error)), is_of_host }
    };
    let (len, most) = (spec.command_len(), sys::most_arguments());
    if len > most {
        let message = format!("the command line of `{}` is too long: {len} bytes", printable(&spec.name));
        let error =
            text.error(&spec.header, message, format!("a process takes {most}: give some tunnels another `port`"));
        return Err(Refusal::of_file(error));
    }
    // Each tunnel was parsed alone, and its process parses them all together.
    if spec.members() > 1 {
        let wrong = |found| located(&spec.tokens, &spec.header, text, usage_error(spec.kind, &spec.tokens, &found));
        command_line(spec.kind, &spec.tokens).map_err(|found| Refusal::of_file(wrong(found)))?;
    }
    if let Some(unresolved) = &spec.unresolved {
        return Err(Refusal { error: unresolved.error.clone(), is_of_host: true });
    }
    let mut listens = None;
    let (knobs, words) = match spec.plan.clone() {
        InstancePlan::Tunnels(plans) => {
            let knobs = start::knobs(plans.iter(), &[]);
            let group = Group::resolve(plans, netlink).map_err(at_words)?;
            listens = Some(group.first()).filter(|ready| ready.plan.has_udp()).map(Ready::listens);
            (knobs, show::plan_text(&group))
        }
        InstancePlan::Gateway(config) => {
            let plan = gateway_plan::plan(&config, netlink).map_err(at_words)?;
            (gateway_start::knobs(&plan, &[]), format!("{} can be: {}", plan.name, plan.text()))
        }
        // The adapter itself says whether a knob can be set, when it starts.
        InstancePlan::Adapter(_) => {
            return Ok(Checked { words: format!("segue lan78xx up {}\n", spec.words().join(" ")), listens });
        }
        InstancePlan::Metrics => {
            check_knobs(spec, text, Vec::new()).map_err(Refusal::of_file)?;
            return Ok(Checked { words: format!("segue metrics {}\n", spec.words().join(" ")), listens });
        }
    };
    let knobs = knobs.map_err(at_words)?;
    check_knobs(spec, text, daemon_knobs::listed(&knobs)).map_err(Refusal::of_file)?;
    Ok(Checked { words, listens })
}

/// Checks whether the knobs of an instance can be set, starting from the knobs and values in `known`.
pub(super) fn check_knobs(spec: &InstanceSpec, text: &Text, mut known: Vec<Knob>) -> Result<(), Error> {
    let mut errors = Vec::new();
    for (at, assignment) in spec.assignments.iter().enumerate() {
        if let Err(wrong) = knobs::set(&mut known, &assignment.name.text, &assignment.value.text) {
            errors.push(wrong_knob(spec, text, at, &wrong));
        }
    }
    together(errors).map_or(Ok(()), Err)
}

/// The reason why an instance cannot start on this host.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: Box<Error>,
    /// Whether a change of the host can resolve the error: an interface comes, an address becomes free.
    pub(super) is_of_host: bool,
}

impl Refusal {
    /// Returns the refusal for an error in the file itself, which no change of the host resolves.
    pub(super) fn of_file(error: Error) -> Refusal {
        Refusal { error: Box::new(error), is_of_host: false }
    }
}

/// The result of checking one instance.
#[derive(Debug)]
pub(super) struct Checked {
    /// Plan of the instance as text.
    pub(super) words: String,
    /// Address and UDP port that the instance listens on; `None` without UDP.
    pub(super) listens: Option<SocketAddr>,
}

/// Returns the names of the remotes of a configuration.
pub(super) fn hosts(text: &Text) -> Vec<String> {
    let (document, _) = DeTable::parse_recoverable(&text.text);
    keys::hosts(document.get_ref())
}

/// Reads a configuration, and takes the addresses of remotes given as names from one call of `look_up`.
/// Returns all errors that need no other look at the system.
pub(super) fn read(text: &Text, look_up: impl FnOnce(Vec<String>) -> Names) -> Result<Vec<InstanceSpec>, Error> {
    let (document, broken) = DeTable::parse_recoverable(&text.text);
    let end = text.text.len()..text.text.len();
    let mut errors: Vec<Error> = (broken.iter().take(MOST_ERRORS + 1))
        .map(|error| text.error(&error.span().unwrap_or(end.clone()), error.message(), ""))
        .collect();
    let mut specs: Vec<InstanceSpec> = Vec::new();
    // Errors after a syntax error would be caused by it.
    if errors.is_empty() {
        let names = look_up(keys::hosts(document.get_ref()));
        for (key, value) in document.get_ref() {
            if errors.len() > MOST_ERRORS {
                break;
            }
            let kind = match key.get_ref().as_ref() {
                "tunnel" => Kind::Tunnel,
                "gateway" => Kind::Gateway,
                "lan78xx" => Kind::Adapter,
                "metrics" => Kind::Metrics,
                other => {
                    let known = ["tunnel", "gateway", "lan78xx", "metrics"].map(str::to_owned);
                    errors.push(keys::unknown(text, &key.span(), other, &known));
                    continue;
                }
            };
            if let (Kind::Metrics, DeValue::Table(keys)) = (kind, value.get_ref()) {
                match keys::instance(text, kind, keys, value.span(), &names) {
                    Ok(spec) => specs.push(spec),
                    Err(found) => errors.extend(found),
                }
                continue;
            }
            let tables =
                value.get_ref().as_array().filter(|tables| tables.iter().all(|table| table.get_ref().is_table()));
            let Some(tables) = tables else {
                let note = format!("write [[{}]] above each", kind.command());
                errors.push(text.error(&key.span(), format!("`{}` is a list of tables", kind.command()), note));
                continue;
            };
            for table in tables.iter() {
                if errors.len() > MOST_ERRORS {
                    break;
                }
                if let DeValue::Table(keys) = table.get_ref() {
                    match keys::instance(text, kind, keys, table.span(), &names) {
                        Ok(spec) => specs.push(spec),
                        Err(found) => errors.extend(found),
                    }
                }
            }
        }
    }
    specs.sort_by_key(|spec| spec.header.start);
    let mut names: HashMap<&str, &InstanceSpec> = HashMap::new();
    for spec in &specs {
        match names.entry(&spec.name) {
            Entry::Vacant(place) => drop(place.insert(spec)),
            Entry::Occupied(first) => {
                let note = format!("line {} has the same", text.line(first.get().header.start));
                let message = format!("`{}` is given twice", printable(&spec.name));
                errors.push(text.error(&name_span(spec), message, note));
            }
        }
    }
    crossed(&specs, text, &mut errors);
    let specs = if errors.is_empty() { joined(specs, text, &mut errors) } else { specs };
    if errors.len() > MOST_ERRORS {
        errors.truncate(MOST_ERRORS);
        let message = format!("there are more than {MOST_ERRORS} errors");
        // In front: of many errors the last ones are not shown.
        errors.push(text.error(&(0..0), message, "the first of them follow"));
    }
    match together(errors) {
        Some(error) => Err(error),
        None => Ok(specs),
    }
}

/// Refuses two gateways between the same interfaces, which would forward each packet twice.
fn crossed(specs: &[InstanceSpec], text: &Text, errors: &mut Vec<Error>) {
    let mut seen: HashMap<Vec<String>, &InstanceSpec> = HashMap::new();
    for spec in specs {
        let InstancePlan::Gateway(config) = &spec.plan else { continue };
        let mut ends = config.ends();
        ends.sort();
        match seen.entry(ends) {
            Entry::Vacant(place) => drop(place.insert(spec)),
            Entry::Occupied(first) => {
                let ends: Vec<String> = first.key().iter().map(|end| format!("`{}`", printable(end))).collect();
                let message = format!("there are two gateways between {}", ends.join(" and "));
                let line = text.line(first.get().header.start);
                errors.push(text.error(&spec.header, message, format!("line {line} has the first of them")));
            }
        }
    }
}

/// Combines tunnels that share an address and port into one instance, named after the first one.
fn joined(specs: Vec<InstanceSpec>, text: &Text, errors: &mut Vec<Error>) -> Vec<InstanceSpec> {
    let mut made: Vec<(InstanceSpec, Vec<Plan>, Vec<Range<usize>>)> = Vec::new();
    let mut places: HashMap<Socket, usize> = HashMap::new();
    for spec in specs {
        let header = spec.header.clone();
        let plan = match &spec.plan {
            // One whose name has no address is absent, and the others are not.
            InstancePlan::Tunnels(_) if spec.unresolved.is_some() => None,
            // Without a port the address must be known.
            InstancePlan::Tunnels(plans) => plans.last().filter(|plan| plan.has_udp() || plan.local.is_some()).cloned(),
            InstancePlan::Gateway(_) | InstancePlan::Adapter(_) | InstancePlan::Metrics => None,
        };
        let Some(plan) = plan else {
            made.push((spec, Vec::new(), Vec::new()));
            continue;
        };
        let at = *places.entry(Socket::of(&plan)).or_insert(made.len());
        match made.get_mut(at) {
            None => made.push((spec, vec![plan], vec![header])),
            Some((first, plans, headers)) => {
                first.append(spec);
                plans.push(plan);
                headers.push(header);
            }
        }
    }
    for (_, plans, headers) in &made {
        if let Some(clash) = group::clash(plans) {
            let first = text.line(headers.first().map_or(0, |header| header.start));
            let note = format!("{} (line {first} has the first of them)", clash.note);
            errors.push(text.error(&headers[clash.at], clash.message, note));
        }
        if let Some(at) = plans.iter().skip(1).position(|plan| plan.trace.is_some()) {
            let message = format!("`trace` of `{}` applies to all tunnels on its port", plans[at + 1].dev);
            errors.push(text.error(&headers[at + 1], message, format!("give it to `{}`, the first", plans[0].dev)));
        }
    }
    made.into_iter().map(|(spec, ..)| spec).collect()
}

/// Returns the position of the word that names an instance, or else of its heading.
fn name_span(spec: &InstanceSpec) -> Range<usize> {
    let named = |token: &&Token| token.text == spec.name;
    spec.tokens.iter().find(named).map_or(spec.header.clone(), |token| token.span.clone())
}

#[cfg(test)]
mod tests {
    use segue_host::names::CachedAddress;

    use super::*;
    use crate::render::Rendered;

    fn read(text: &Text) -> Result<Vec<InstanceSpec>, Error> {
        super::read(text, |_| Names::default())
    }

    fn file(text: &str) -> Text {
        Text { file: "segue.toml".to_owned(), text: text.to_owned() }
    }

    fn specs(text: &str) -> Vec<InstanceSpec> {
        read(&file(text)).unwrap_or_else(|error| panic!("{}", error.text()))
    }

    /// Returns line, column, message and note of every error.
    fn errors(text: &str) -> Vec<(usize, usize, String, String)> {
        let first = read(&file(text)).expect_err(text);
        let more = first.source.as_ref().map(|source| source.more.clone()).unwrap_or_default();
        let shown = |error: Error| {
            let source = error.source.expect("a place");
            (source.line, source.column, error.message, source.note)
        };
        std::iter::once(first).chain(more).map(shown).collect()
    }

    #[test]
    fn keys_become_the_words_and_options_of_the_command() {
        let specs = specs(
            r#"
[[tunnel]]
dev = "sg0"
remote = "198.18.0.2"
encap = "gue"
encap-remcsum = true
pmtudisc = false
tos = 0x10
ttl = 64
gro = false
addr = ["198.19.0.1/30", "2001:db8::1/64"]
trace = "x.pcap"
net.inet.tcp.gso = 0
net.gro.dev.sg0.profile = "linux"

[[gateway]]
out = "tap:lro0"
in = "eth1"
name = "gw0"
hold-us = 50
no-lro = false
"#,
        );
        assert_eq!(specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["sg0", "gw0"]);
        let words = "--trace x.pcap dev sg0 remote 198.18.0.2 encap gue encap-remcsum addr 198.19.0.1/30 \
                     addr 2001:db8::1/64 ttl 64 tos 10 nopmtudisc gro off";
        assert_eq!(specs[0].words().join(" "), words);
        let assignments = [("net.inet.tcp.gso", "0"), ("net.gro.dev.sg0.profile", "linux")];
        assert_eq!(specs[0].knobs(), assignments.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(specs[1].words().join(" "), "--hold-us 50 --name gw0 eth1 tap:lro0");
    }

    #[test]
    fn knobs_may_be_written_in_every_form_of_a_key() {
        for form in [
            "net.gso.dev.sg0.tso = 0",
            "\"net.gso.dev.sg0.tso\" = 0",
            "net.gso = { dev.sg0.tso = false }",
            "[tunnel.net.gso.dev.sg0]\ntso = 0",
        ] {
            let text = format!("[[tunnel]]\ndev=\"sg0\"\nremote=\"::1\"\nencap=\"gue\"\n{form}\n");
            let assignments = specs(&text)[0].knobs();
            assert_eq!((assignments.len(), assignments[0].0.as_str()), (1, "net.gso.dev.sg0.tso"), "{form}");
        }
    }

    #[test]
    fn every_error_has_its_line_and_column_and_all_are_found_at_once() {
        let found = errors(
            r#"[[tunnel]]
dev = "sg0"
remot = "198.18.0.2"
encap = "gue"
mtu = 99999
encap-csum = 1
  ttl = [1]

[[gateway]]
in = "eth1"
hold = 3

[[bridge]]
"#,
        );
        let expected = [
            (3, 1, "unknown key `remot`", "did you mean `remote`?"),
            (5, 7, "`99999` is not a value of `mtu`", "expected 68 to 65535 or auto"),
            (6, 14, "`encap-csum` is on or off", "expected true or false"),
            (7, 9, "`ttl` has one value", "no list is taken here"),
            (9, 1, "`out` is missing", "a gateway has two ends"),
            (11, 1, "unknown key `hold`", ""),
            (13, 3, "unknown key `bridge`", ""),
        ];
        assert_eq!(found, expected.map(|(line, column, a, b)| (line, column, a.to_owned(), b.to_owned())));
    }

    #[test]
    fn every_wrong_option_is_found_at_once_and_a_list_is_one_option_several_times() {
        let base = "[[gateway]]\nin = \"a\"\nout = \"b\"\n";
        let found = errors(&format!(
            "{base}hold-us = 5000000\nmax-packets = 0\npage = \"3k\"\nnat = \"1.2.3\"\nforward = [\"tcp:1=198.18.1.2:1\", \"tcp\"]\nname = [\"a\"]\n"
        ));
        let places: Vec<_> =
            found.iter().map(|(line, column, message, _)| (*line, *column, message.as_str())).collect();
        let expected = [
            (4, 11, "`5000000` is not a value of `hold-us`"),
            (5, 15, "`0` is not a value of `max-packets`"),
            (6, 8, "`3k` is not a value of `page`"),
            (7, 7, "`1.2.3` is not a value of `nat`"),
            (8, 34, "`tcp` is not a value of `forward`"),
            (9, 8, "`name` has one value"),
        ];
        assert_eq!(places, expected);
        // The same value is right in another option, and something else is missing.
        let found = errors("[[gateway]]\nin = \"a\"\nhold-us = 0\nmax-packets = 0\n");
        let places: Vec<_> =
            found.iter().map(|(line, column, message, _)| (*line, *column, message.as_str())).collect();
        assert_eq!(places, [(1, 1, "`out` is missing"), (4, 15, "`0` is not a value of `max-packets`")]);
        let list = "route = true\nnat = \"198.18.2.9\"\nforward = [\"tcp:1=198.18.1.2:1\", \"udp:2=198.18.1.2:2\"]\n";
        let words = specs(&format!("{base}{list}"))[0].words().join(" ");
        let rules = "--forward tcp:1=198.18.1.2:1 --forward udp:2=198.18.1.2:2";
        assert_eq!(words, format!("--route --nat 198.18.2.9 {rules} a b"));
    }

    #[test]
    fn two_gateways_between_the_same_interfaces_are_refused() {
        let gateway = |from: &str, to: &str, name: &str| {
            format!("[[gateway]]\nin = \"{from}\"\nout = \"{to}\"\nname = \"{name}\"\n")
        };
        let error = &errors(&(gateway("a", "b", "one") + &gateway("b", "a", "two")))[0];
        assert_eq!((error.0, error.2.as_str()), (5, "there are two gateways between `a` and `b`"));
        assert_eq!(specs(&(gateway("a", "b", "one") + &gateway("b", "c", "two"))).len(), 2);
    }

    #[test]
    fn what_is_not_shown_of_many_errors_is_counted() {
        let many: String = (0..25).map(|n| format!("k{n} = 1\n")).collect();
        let error = read(&file(&format!("[[tunnel]]\n{many}"))).unwrap_err();
        assert!(error.text().ends_with("25 errors, 5 of them not shown, nothing was changed\n"), "{}", error.text());
        assert_eq!(error.json()["error"]["left_out"], 5);
    }

    #[test]
    fn what_does_not_go_together_is_pointed_at() {
        let base = "[[tunnel]]\ndev = \"sg0\"\nremote = \"198.18.0.2\"\nencap = \"fou\"\n";
        assert_eq!((errors(base)[0].0, errors(base)[0].1), (1, 1), "something is missing: the heading");
        let conflict = format!("{base}encap-dport = 5\nencap-remcsum = true\n");
        let error = &errors(&conflict)[0];
        assert_eq!((error.0, error.1, error.2.as_str()), (6, 1, "`encap-remcsum` does not go with `encap fou`"));
        let twice = format!("{base}encap-dport = 5\n{base}encap-dport = 6\n");
        let error = &errors(&twice)[0];
        assert_eq!(
            (error.0, error.1, error.2.as_str(), error.3.as_str()),
            (7, 7, "`sg0` is given twice", "line 1 has the same")
        );
        let range = "[[gateway]]\nin = \"a\"\nout = \"b\"\nhold-us = 5000000\n";
        assert_eq!((errors(range)[0].0, errors(range)[0].1), (4, 11));
        let end = "[[gateway]]\nin = \"a/b\"\nout = \"b\"\n";
        assert_eq!((errors(end)[0].0, errors(end)[0].1), (2, 6));
        // Errors without a word say which value they are about.
        for (line, column) in [
            ("usb = \"usbip://a b/1-1\"", 7),
            ("usb = \"usbip://198.18.0.1\"", 7),
            ("mac = \"01:00:00:00:00:01\"", 7),
            ("usb = \"model\"\nwire = \"cable\"", 8),
        ] {
            let text = format!("[[lan78xx]]\n{line}\n");
            assert_eq!((errors(&text)[0].0, errors(&text)[0].1), (1 + line.lines().count(), column), "{line}");
        }
        let passed = "[metrics]\nlisten = [\"127.0.0.1\", \"fd:metrics\"]\n";
        let error = &errors(passed)[0];
        assert_eq!((error.0, error.1, error.2.as_str()), (2, 24, "`fd:metrics` does not go with `segue run`"));
    }

    #[test]
    fn tunnels_of_one_port_become_one_instance_where_they_can_be_told_apart() {
        let one = |dev: &str, more: &str| {
            format!("[[tunnel]]\ndev = \"{dev}\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n{more}\n")
        };
        let error = &errors(&(one("a", "") + &one("b", "")))[0];
        assert_eq!((error.0, error.2.as_str()), (6, "`a` and `b` would take the same packets of 198.18.0.2"));
        assert_eq!(specs(&(one("a", "") + &one("b", "port = 6081"))).len(), 2);
        let three = specs(&(one("a", "key = 1") + &one("c", "port = 6081") + &one("b", "net.gso.dev.b.tso = 0")));
        assert_eq!(three.len(), 2);
        assert_eq!((three[0].name.as_str(), three[0].knobs().len()), ("a", 1));
        let words = three[0].words().join(" ");
        assert_eq!(words, "dev a remote 198.18.0.2 encap gue key 1 also dev b remote 198.18.0.2 encap gue");
        let error = &errors(&(one("a", "") + &one("b", "key = 1\nencap-csum = false")))[0];
        assert_eq!((error.0, error.2.as_str()), (6, "`a` and `b` cannot share a port: `encap-csum` differs"));
        let error = &errors(&(one("a", "") + &one("b", "key = 1\ntrace = \"x.pcap\"")))[0];
        assert_eq!((error.0, error.3.as_str()), (6, "give it to `a`, the first"));
    }

    #[test]
    fn tunnels_of_one_port_have_an_option_of_the_process_once_whichever_of_them_have_it() {
        let tunnel = |n: u8, more: &str| {
            format!("[[tunnel]]\ndev = \"t{n}\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nkey = {n}\n{more}\n")
        };
        let weak = "weak-sandbox = true";
        let parsed = |spec: &InstanceSpec| command_line(spec.kind, &spec.tokens).map(drop).map_err(|e| e.to_string());
        let has = |spec: &InstanceSpec| spec.words().iter().filter(|word| *word == "--weak-sandbox").count();
        for with in [[true; 3], [false, true, true], [true, false, true], [false, false, true]] {
            let each = (1..).zip(with).map(|(n, is_weak)| tunnel(n, if is_weak { weak } else { "" }));
            let all = &specs(&each.collect::<String>())[0];
            assert_eq!((all.members(), parsed(all), has(all)), (3, Ok(()), 1), "{with:?}");
            // Whichever of them stay, the others are the same tunnels, and their process has the option.
            for stay in [&[1, 2, 3][..], &[3], &[2, 3], &[3, 1]] {
                let some: String = stay.iter().map(|n| tunnel(*n, weak)).collect();
                let devs: Vec<String> = stay.iter().map(|n| format!("t{n}")).collect();
                assert_eq!(specs(&some)[0].shared(all), devs, "{with:?}");
                let only = all.only(&devs).unwrap();
                assert_eq!((parsed(&only), has(&only)), (Ok(()), 1), "{with:?}: {devs:?}");
            }
            // A check parses the words of all tunnels as their process does.
            let twice = InstanceSpec {
                tokens: [&all.tokens[..], &[Token::new("--weak-sandbox", 0..0)]].concat(),
                ..all.clone()
            };
            let refused = check(&twice, &file(""), &mut Netlink::open().unwrap()).unwrap_err();
            assert_eq!((&*refused.error.message, refused.is_of_host), ("`weak-sandbox` is given twice", false));
        }
    }

    #[test]
    fn names_are_looked_up_together_and_only_the_service_knows_them() {
        let tunnel = |dev: &str, remote: &str, key: u8| {
            let ends = format!("dev = \"{dev}\"\nlocal = \"198.18.0.1\"\nremote = \"{remote}\"\n");
            format!("[[tunnel]]\n{ends}encap = \"gue\"\nkey = {key}\n")
        };
        let hosts = ["here.invalid", "198.18.0.9", "gone.invalid", "six.invalid", "there.invalid"];
        let text = file(&(1..).zip(hosts).map(|(key, host)| tunnel(&format!("t{key}"), host, key)).collect::<String>());
        let address = |line: &str| {
            let [dev, host, address] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            CachedAddress { dev: dev.to_owned(), host: host.to_owned(), address: address.parse().unwrap() }
        };
        let lines = ["t1 here.invalid 198.18.0.2", "t4 six.invalid 2001:db8::2", "t5 there.invalid 198.18.0.3"];
        let cached = lines.map(address);
        let look_up = |asked: Vec<String>| {
            assert_eq!(asked, ["here.invalid", "gone.invalid", "six.invalid", "there.invalid"]);
            Names::default().or(cached.clone())
        };
        assert_eq!(super::hosts(&text), ["here.invalid", "gone.invalid", "six.invalid", "there.invalid"]);
        let specs = super::read(&text, look_up).unwrap();
        // Those with an address share a process, which gets the addresses; the others stand alone, with the reason.
        assert_eq!(specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["t1", "t3", "t4"]);
        let remotes = |words: Vec<String>| -> Vec<String> {
            words.windows(2).filter(|pair| pair[0] == "remote").map(|pair| pair[1].clone()).collect()
        };
        assert_eq!(remotes(specs[0].words()), ["here.invalid", "198.18.0.9", "there.invalid"]);
        assert_eq!(remotes(specs[0].process_words()), ["198.18.0.2", "198.18.0.9", "198.18.0.3"]);
        assert_eq!(specs[0].cached_addresses(), [cached[0].clone(), cached[2].clone()]);
        let absent = |spec: &InstanceSpec| spec.unresolved.as_ref().unwrap().error.message.clone();
        assert_eq!(absent(&specs[1]), "cannot find the address of `gone.invalid`");
        assert_eq!(absent(&specs[2]), "`six.invalid` has no IPv4 address, and `local 198.18.0.1` is one");
        assert!(specs[1..].iter().all(|spec| spec.cached_addresses().is_empty()));
        let only = specs[0].only(&["t5".to_owned()]).unwrap();
        assert_eq!(remotes(only.process_words()), ["198.18.0.3"]);
        assert_eq!(only.cached_addresses(), [cached[2].clone()]);
        // The file of a trace is no word.
        let traced = file("[[tunnel]]\ndev = \"a\"\nremote = \"here.invalid\"\nencap = \"gue\"\ntrace = \"remote\"\n");
        let traced = super::read(&traced, |_| Names::default().or(cached.clone())).unwrap();
        assert_eq!(traced[0].process_words().join(" "), "--trace remote dev a remote 198.18.0.2 encap gue");
    }

    #[test]
    fn a_name_keeps_the_address_of_each_tunnel_in_its_family() {
        let tunnel = |dev: &str, port: u16, more: &str| {
            format!("[[tunnel]]\ndev = \"{dev}\"\nremote = \"peer\"\nencap = \"gue\"\nport = {port}\n{more}\n")
        };
        let text = tunnel("four", 6080, "local = \"198.18.0.1\"")
            + &tunnel("six", 6081, "local = \"2001:db8::1\"")
            + &tunnel("any", 6082, "")
            + &tunnel("other", 6083, "")
            + &tunnel("added", 6084, "local = \"2001:db8::1\"");
        let before = [("four", "198.18.0.2"), ("six", "2001:db8::2"), ("any", "2001:db8::3"), ("other", "198.18.0.3")];
        let cached = before.map(|(dev, address)| CachedAddress {
            dev: dev.to_owned(),
            host: "peer".to_owned(),
            address: address.parse().unwrap(),
        });
        let specs = super::read(&file(&text), |_| Names::default().or(cached.clone())).unwrap();
        let found: Vec<CachedAddress> = specs.iter().flat_map(InstanceSpec::cached_addresses).collect();
        assert_eq!(found[..4], cached);
        assert_eq!((found[4].dev.as_str(), found[4].address), ("added", cached[1].address));
    }

    #[test]
    fn the_example_of_the_documentation_has_every_key_of_every_table() {
        let example = include_str!("../../../../docs/segue.toml");
        for (kind, heading) in [
            (Kind::Tunnel, "[[tunnel]]"),
            (Kind::Gateway, "[[gateway]]"),
            (Kind::Adapter, "[[lan78xx]]"),
            (Kind::Metrics, "[metrics]"),
        ] {
            let lines = example.lines().map(|line| line.trim_start_matches("# "));
            let own = lines.skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with('['));
            let found: Vec<&str> = own.filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
            for key in keys::keys_of(kind) {
                assert!(found.contains(&key.as_str()), "`{key}` of {heading} is not in docs/segue.toml");
            }
        }
    }

    #[test]
    fn a_thousand_tunnels_are_read_in_one_go() {
        let tunnel =
            |n: usize| format!("[[tunnel]]\ndev = \"t{n}\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nkey = {n}\n");
        let all = specs(&(0..1000).map(tunnel).collect::<String>());
        assert_eq!((all.len(), all[0].words().iter().filter(|word| *word == "also").count()), (1, 999));
    }

    #[test]
    fn broken_toml_is_shown_where_it_breaks_and_nothing_panics() {
        for text in
            ["a = ", "[[tunnel]", "[[tunnel]]\ndev = \"x", "tunnel = 3", "tunnel = [1]", "\u{0}", "[[tunnel]]\nnet = 1"]
        {
            assert!(!errors(text).is_empty(), "{text}");
        }
        assert!(specs("").is_empty() && specs("# nothing\n").is_empty());
        // Every prefix of a valid file is valid or is refused without a panic.
        let text = "[[tunnel]]\ndev = \"sgé\"\nremote = \"::1\"\nencap = \"gue\"\ntos = 0x10\n[tunnel.net.inet]\ntcp.gso = 0\n";
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let _ = read(&file(&text[..at])).map_err(|error| error.text());
        }
    }
}
