//! The parser of keywords, with errors that point at the wrong token.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::Arc;

use segue_control::error::{Error, Kind, Place, printable};
use segue_control::peers::{Encap, Mac};
use segue_control::suggest::{integer, list, nearest};
use segue_host::interface::check_name;
use segue_host::prefix::Prefix;
use segue_service::supervise::spec::ALSO;

use crate::{Takes, Word};

/// The value of a keyword.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value of a switch: on or off.
    Switch(bool),
    /// The value is a number.
    Number(u64),
    /// The first and the last port of a range.
    Range(u16, u16),
    /// The value is a name from the table: one of a choice, or one accepted instead of a number.
    Name(&'static str),
    /// The value is an IP address.
    Address(IpAddr),
    /// The value is a link-local address with its interface, such as `fe80::1%eth0`.
    LinkLocal(Ipv6Addr, String),
    /// The value is a host name that has not been looked up.
    Host(String),
    /// An address with a prefix length.
    Prefix(Prefix),
    /// An Ethernet address, and the remote that has it.
    Neighbour([u8; 6], IpAddr),
    /// The value is an Ethernet address.
    Mac(Mac),
    /// Encapsulations with their UDP ports.
    Listeners(Vec<(Encap, u16)>),
    /// A path of a file.
    File(String),
    /// The name of an interface.
    Device(String),
}

/// A keyword with its value from the command line.
#[derive(Clone, Debug)]
pub struct Given {
    word: &'static Word,
    value: Value,
    /// The index of the keyword.
    at: usize,
}

/// The keywords of one tunnel, checked against the table.
#[derive(Debug)]
pub struct Parsed {
    command: &'static str,
    /// All tokens of the command.
    tokens: Arc<[String]>,
    /// Range of this tunnel's tokens.
    own: Range<usize>,
    given: Vec<Given>,
}

/// Parses `tokens` by `table`; they may be the words of several tunnels with [`ALSO`] between them. `command` is the
/// command of the hint.
pub fn parse_each(command: &'static str, table: &'static [Word], tokens: &[String]) -> Result<Vec<Parsed>, Error> {
    let tokens: Arc<[String]> = tokens.into();
    let mut each = Vec::new();
    let mut from = 0;
    for own in tokens.split(|token| token == ALSO) {
        each.push(parse_range(command, table, &tokens, from..from + own.len())?);
        from += own.len() + 1;
    }
    Ok(each)
}

/// Parses `tokens` by `table` as the words of one tunnel; `command` is the command that the hint of an error names.
///
/// # Errors
/// The first wrong word, as for [`parse_each`].
pub fn parse(command: &'static str, table: &'static [Word], tokens: &[String]) -> Result<Parsed, Error> {
    parse_range(command, table, &tokens.into(), 0..tokens.len())
}

fn parse_range(
    command: &'static str,
    table: &'static [Word],
    tokens: &Arc<[String]>,
    own: Range<usize>,
) -> Result<Parsed, Error> {
    let mut parsed = Parsed { command, tokens: Arc::clone(tokens), own: own.clone(), given: Vec::new() };
    let mut at = own.start;
    while at < own.end {
        let Some((word, on)) = find(table, &tokens[at]) else {
            return Err(parsed.unknown(table, at));
        };
        if !word.repeats && parsed.place_of(word.name).is_some() {
            let message = format!("`{}` is given twice", word.name);
            return Err(parsed.error_at(Kind::Conflict, message, at, "once is enough"));
        }
        let value = match word.takes {
            Takes::Switch => Value::Switch(on),
            Takes::Ports => match (parsed.value(word, at + 1)?, parsed.value(word, at + 2)?) {
                (Value::Range(first, _), Value::Range(_, last)) => Value::Range(first, last),
                (other, _) => other,
            },
            _ => parsed.value(word, at + 1)?,
        };
        parsed.given.push(Given { word, value, at });
        at += 1 + word.takes.tokens();
    }
    parsed.check_conflicts()?;
    for word in table.iter().filter(|word| word.required && !parsed.is_lifted(word)) {
        if parsed.place_of(word.name).is_none() {
            let message = format!("`{}` is missing", word.name);
            let note = format!("add `{} {}`: {}", word.name, word.metavar, word.help);
            return Err(parsed.error_at(Kind::Missing, message, own.end, note));
        }
    }
    parsed.check_needs(table)?;
    Ok(parsed)
}

impl Parsed {
    /// Returns the value of a keyword, if present.
    pub fn value_of(&self, name: &str) -> Option<&Value> {
        self.given.iter().find(|given| given.word.name == name).map(|given| &given.value)
    }

    /// Returns all values of a keyword that repeats, with their indexes.
    pub fn values_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Value, usize)> + 'a {
        self.given.iter().filter(move |given| given.word.name == name).map(|given| (&given.value, given.at + 1))
    }

    /// Returns the index of a keyword, if present.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.given.iter().find(|given| given.word.name == name).map(|given| given.at)
    }

    /// Returns an error that points at token `at`; [`end`](Self::end) is the position after the last one.
    pub fn error_at(&self, kind: Kind, message: impl Into<String>, at: usize, note: impl Into<String>) -> Error {
        let place = Place { words: self.tokens.to_vec(), at, note: note.into(), nearest: None };
        Error::new(kind, message, format!("{} --help", self.command)).at(place)
    }

    /// Returns the position of a missing word.
    pub fn end(&self) -> usize {
        self.own.end
    }

    /// Returns whether another keyword makes the requirements of `word` unnecessary.
    fn is_lifted(&self, word: &Word) -> bool {
        !word.unless.is_empty() && self.place_of(word.unless).is_some()
    }

    /// Returns the names of the present keywords, with their indexes.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        self.given.iter().map(|given| (given.word.name, given.at))
    }

    fn unknown(&self, table: &[Word], at: usize) -> Error {
        let token = &self.tokens[at];
        let message = format!("unknown word `{}`", printable(token));
        if token.parse::<IpAddr>().is_ok() {
            return self.error_at(Kind::UnknownWord, message, at, "an address needs `remote` or `local` before it");
        }
        let spellings: Vec<String> = table.iter().flat_map(Word::spellings).map(|(spelling, _)| spelling).collect();
        let starts: Vec<&String> = spellings.iter().filter(|spelling| spelling.starts_with(token.as_str())).collect();
        let (note, nearest) = match (nearest(token, spellings.iter().map(String::as_str)), &starts[..]) {
            (Some(near), _) => (format!("did you mean `{near}`?"), Some(near.to_owned())),
            (None, [one]) if !token.is_empty() => {
                (format!("did you mean `{one}`? keywords cannot be abbreviated"), Some(one.to_string()))
            }
            (None, _) => (String::new(), None),
        };
        let mut error = self.error_at(Kind::UnknownWord, message, at, note);
        if let Some(place) = &mut error.place {
            place.nearest = nearest;
        }
        error
    }

    fn value(&self, word: &Word, at: usize) -> Result<Value, Error> {
        let Some(token) = self.tokens.get(at).filter(|_| at < self.own.end) else {
            let message = format!("`{}` needs a value", word.name);
            let note = match self.tokens.get(at) {
                Some(next) if next == ALSO => format!("`{ALSO}` begins another one, and is no value"),
                _ => format!("{}: {}", word.metavar, word.help),
            };
            return Err(self.error_at(Kind::Missing, message, at, note));
        };
        value(word.takes, token).map_err(|(note, nearest)| {
            let message = format!("`{}` is not a value of `{}`", printable(token), word.name);
            let mut error = self.error_at(Kind::BadValue, message, at, note);
            if let Some(place) = &mut error.place {
                place.nearest = nearest;
            }
            error
        })
    }

    fn check_conflicts(&self) -> Result<(), Error> {
        for given in &self.given {
            for name in given.word.conflicts {
                if let Some(at) = self.place_of(name) {
                    let message = format!("`{name}` does not go with `{}`", given.word.name);
                    let note = format!("`{}` sets both directions", given.word.name);
                    return Err(self.error_at(Kind::Conflict, message, at, note));
                }
            }
        }
        Ok(())
    }

    /// Checks that required values of other keywords are present. A keyword that is switched off requires nothing.
    /// Another keyword counts with its value or its default; where it has neither, its own rules decide.
    fn check_needs(&self, table: &[Word]) -> Result<(), Error> {
        let counts = |given: &&Given| given.value != Value::Switch(false) && !self.is_lifted(given.word);
        for given in self.given.iter().filter(counts) {
            for (name, allowed) in given.word.needs {
                let default = table.iter().find(|word| word.name == *name).map_or("", |word| word.default);
                let has = match self.value_of(name) {
                    Some(Value::Name(value)) => *value,
                    _ => default,
                };
                if !has.is_empty() && !allowed.contains(&has) {
                    let wants = allowed.join(" or ");
                    let message = format!("`{}` does not go with `{name} {has}`", given.word.name);
                    return Err(self.error_at(Kind::Conflict, message, given.at, format!("it needs `{name} {wants}`")));
                }
            }
        }
        Ok(())
    }
}

/// Returns the keyword with a given spelling, and whether the spelling switches on.
fn find(table: &'static [Word], token: &str) -> Option<(&'static Word, bool)> {
    table.iter().find_map(|word| word.spellings().find(|(spelling, _)| spelling == token).map(|(_, on)| (word, on)))
}

/// Returns the index of the value that is a host name among the `tokens` of one tunnel, if there is one. Tokens
/// that are not of `table`, such as options, are passed over.
pub fn host_at(table: &'static [Word], tokens: &[&str]) -> Option<usize> {
    let mut at = 0;
    while at < tokens.len() {
        let Some((word, _)) = find(table, tokens[at]) else {
            at += 1;
            continue;
        };
        let is_host = |token: &&str| matches!(value(word.takes, token), Ok(Value::Host(_)));
        if tokens.get(at + 1).is_some_and(is_host) {
            return Some(at + 1);
        }
        at += 1 + word.takes.tokens();
    }
    None
}

/// A wrong value: its fault in words, and the nearest valid value, if there is one.
pub type Wrong = (String, Option<String>);

/// Parses the value `token` of a keyword with the type `takes`.
///
/// # Errors
/// What is expected, and the nearest valid value.
pub fn value(takes: Takes, token: &str) -> Result<Value, Wrong> {
    let expected = |text: &str| (format!("expected {text}"), None);
    match takes {
        Takes::Switch => Ok(Value::Switch(true)),
        Takes::OneOf(names) => name(names, token).map(Value::Name),
        Takes::Number { min, max, or } => number(min, max, or, token),
        Takes::Hex { max, or } => hex(max, or, token),
        // One end of the range; the caller joins both.
        Takes::Ports => match integer(token).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0) {
            Some(port) => Ok(Value::Range(port, port)),
            None => Err(expected("1 to 65535")),
        },
        Takes::Key => key(token)
            .map(|key| Value::Number(u64::from(key)))
            .ok_or_else(|| expected("a number to 4294967295 or a dotted quad")),
        Takes::Address | Takes::Host if token.contains('%') => link_local(token),
        Takes::Address => token.parse().map(Value::Address).map_err(|_| expected(address_note(token))),
        Takes::Host => match token.parse() {
            Ok(address) => Ok(Value::Address(address)),
            Err(_) if is_host_name(token) => Ok(Value::Host(token.to_owned())),
            Err(_) if token.contains('/') => Err(expected(address_note(token))),
            Err(_) => Err(expected("an IPv4 or IPv6 address, or a host name")),
        },
        Takes::Prefix => prefix(token).map(Value::Prefix),
        Takes::Neighbour => neighbour(token)
            .map(|(mac, address)| Value::Neighbour(mac, address))
            .ok_or_else(|| expected("MAC,ADDR, as in 02:00:00:00:00:01,198.18.0.3")),
        Takes::Mac => token.parse().map(Value::Mac).map_err(|note: &str| (note.to_owned(), None)),
        Takes::Listeners => listeners(token).map(Value::Listeners),
        Takes::File { or } => match or.iter().find(|name| **name == token) {
            Some(name) => Ok(Value::Name(name)),
            None if token.is_empty() => Err(expected("the path of a file")),
            None => Ok(Value::File(token.to_owned())),
        },
        // The service knows what may follow.
        Takes::Device if token.starts_with("vhost:") => Ok(Value::Device(token.to_owned())),
        Takes::Device => {
            check_name(token).map(str::to_owned).map_err(|note| (note.to_owned(), None)).map(Value::Device)
        }
    }
}

/// Parses a link-local address with its interface (RFC 4007, section 11).
fn link_local(token: &str) -> Result<Value, Wrong> {
    let (address, zone) = token.split_once('%').unwrap_or((token, ""));
    match address.parse::<Ipv6Addr>() {
        Ok(address) if address.is_unicast_link_local() => {
            let zone = check_name(zone).map_err(|note| (format!("expected an interface after %: {note}"), None))?;
            Ok(Value::LinkLocal(address, zone.to_owned()))
        }
        _ => Err(("expected a link-local address before %, as in fe80::1%eth0".to_owned(), None)),
    }
}

fn name(names: &'static [&'static str], token: &str) -> Result<&'static str, Wrong> {
    if let Some(name) = names.iter().find(|name| **name == token) {
        return Ok(name);
    }
    match nearest(token, names.iter().copied()) {
        Some(near) => Err((format!("did you mean `{near}`?"), Some(near.to_owned()))),
        None => Err((format!("expected {}", list(names)), None)),
    }
}

fn hex(max: u64, or: &'static [&'static str], token: &str) -> Result<Value, Wrong> {
    if let Some(name) = or.iter().find(|name| **name == token) {
        return Ok(Value::Name(name));
    }
    let digits = token.strip_prefix("0x").or(token.strip_prefix("0X")).unwrap_or(token);
    // `from_str_radix` would accept a sign.
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| digits.starts_with(|c: char| c.is_ascii_hexdigit()));
    match number {
        Some(number) if number <= max => Ok(Value::Number(number)),
        _ => Err((format!("expected 0 to {max:x} (hexadecimal), or {}", list(or)), None)),
    }
}

fn number(min: u64, max: u64, or: &'static [&'static str], token: &str) -> Result<Value, Wrong> {
    if let Some(name) = or.iter().find(|name| **name == token) {
        return Ok(Value::Name(name));
    }
    if let Some(near) = nearest(token, or.iter().copied()) {
        return Err((format!("did you mean `{near}`?"), Some(near.to_owned())));
    }
    match integer(token) {
        Some(number) if (min..=max).contains(&number) => Ok(Value::Number(number)),
        _ => {
            let range = format!("{min} to {max}");
            let all: Vec<&str> = std::iter::once(range.as_str()).chain(or.iter().copied()).collect();
            Err((format!("expected {}", list(&all)), None))
        }
    }
}

/// Parses encapsulations with their ports, each at most once.
fn listeners(token: &str) -> Result<Vec<(Encap, u16)>, Wrong> {
    let mut all: Vec<(Encap, u16)> = Vec::new();
    for part in token.split(',') {
        let (name, port) = part.split_once(':').map_or((part, None), |(name, port)| (name, Some(port)));
        let Some(encap) = Encap::ALL.into_iter().find(|encap| encap.name() == name) else {
            let near = nearest(name, Encap::ALL.iter().map(|encap| encap.name()));
            let note = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => "expected vxlan, gue or fou, each with :PORT or its default, and commas between".to_owned(),
            };
            return Err((note, near.map(str::to_owned)));
        };
        let port = match port {
            None => Some(default_port(encap)),
            Some(port) => integer(port).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
        };
        let Some(port) = port else { return Err((format!("expected {name}:1 to {name}:65535"), None)) };
        if all.iter().any(|(known, other)| *known == encap || *other == port) {
            return Err(("an encapsulation, and a port, is given twice".to_owned(), None));
        }
        all.push((encap, port));
    }
    all.sort_unstable();
    Ok(all)
}

/// Returns the UDP port of an encapsulation of a peer table: Linux's ones, and flannel's `udp` port for `fou`.
fn default_port(encap: Encap) -> u16 {
    match encap {
        Encap::Vxlan => 8472,
        Encap::Gue => 6080,
        Encap::Fou => 8285,
    }
}

fn key(token: &str) -> Option<u32> {
    match token.parse::<Ipv4Addr>() {
        Ok(quad) => Some(u32::from(quad)),
        Err(_) => integer(token).and_then(|number| u32::try_from(number).ok()),
    }
}

fn neighbour(token: &str) -> Option<([u8; 6], IpAddr)> {
    let (mac, address) = token.split_once(',')?;
    let mut bytes = [0; 6];
    let mut parts = mac.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()) && !part.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    if parts.next().is_some() {
        return None;
    }
    Some((bytes, address.parse().ok()?))
}

fn prefix(token: &str) -> Result<Prefix, Wrong> {
    let Some((address, len)) = token.split_once('/') else {
        let example = if token.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) { "/64" } else { "/30" };
        return Err((format!("expected an address with a length, as in ADDR{example}"), None));
    };
    let address: IpAddr =
        address.parse().map_err(|_| (format!("expected {} before the /", address_note(address)), None))?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    match len.parse::<u8>() {
        Ok(len) if len <= max && !len_has_sign(token) => Ok(Prefix { address, len }),
        _ => Err((format!("expected a length of 0 to {max} after the /"), None)),
    }
}

fn len_has_sign(token: &str) -> bool {
    token.contains("/+")
}

/// Returns whether a word has the form of a host name (RFC 1123, section 2.1) and cannot be meant as an address.
fn is_host_name(token: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    let name = token.strip_suffix('.').unwrap_or(token);
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 253 && name.split('.').all(is_label) && last.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn address_note(token: &str) -> &'static str {
    if token.contains('/') { "an address without a length" } else { "an IPv4 or IPv6 address" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::KEYWORDS;

    fn tokens(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn ok(line: &str) -> Parsed {
        parse("segue tunnel", KEYWORDS, &tokens(line)).unwrap_or_else(|error| panic!("{line}: {}", error.message))
    }

    fn wrong(line: &str) -> (String, Place) {
        let error = parse("segue tunnel", KEYWORDS, &tokens(line)).expect_err(line);
        assert_eq!(error.kind.exit_code(), 2, "{line}");
        (error.message.clone(), *error.place.expect("a place"))
    }

    #[test]
    fn a_host_name_is_told_from_a_wrong_address() {
        for name in ["localhost", "gw-1.example.net", "a.b.c.", "_x.example", "10.example"] {
            assert_eq!(value(Takes::Host, name), Ok(Value::Host(name.to_owned())), "{name}");
        }
        for wrong in [
            "198.18.0.300",
            "198.18.0",
            "1.2.3.4/24",
            "2001:db8::1%eth0",
            "fe80::1%",
            "fe80::1%a b",
            "",
            "-a",
            "a..b",
            "a b",
            "2001:db8::g",
        ] {
            assert!(value(Takes::Host, wrong).is_err(), "{wrong}");
        }
        assert!(matches!(value(Takes::Host, "2001:db8::2"), Ok(Value::Address(_))));
    }

    #[test]
    fn words_come_in_any_order() {
        let line = ["dev sg0", "remote 198.18.0.2", "mode sit", "encap fou", "encap-dport 5555"];
        for turn in 0..line.len() {
            let mut turned = line;
            turned.rotate_left(turn);
            let parsed = ok(&turned.join(" "));
            assert_eq!(parsed.value_of("mode"), Some(&Value::Name("sit")));
            assert_eq!(parsed.value_of("encap-dport"), Some(&Value::Number(5555)));
        }
    }

    #[test]
    fn every_word_with_one_letter_wrong_gets_itself_suggested() {
        for word in KEYWORDS {
            for (spelling, _) in word.spellings().filter(|(spelling, _)| spelling.len() > 3) {
                for at in 1..spelling.len() {
                    let mut typo = spelling.clone();
                    typo.remove(at);
                    if KEYWORDS.iter().flat_map(Word::spellings).any(|(other, _)| other == typo) {
                        continue;
                    }
                    let (_, place) = wrong(&typo);
                    let near = place.nearest.unwrap_or_else(|| panic!("{typo} suggests nothing"));
                    let distance = strsim::damerau_levenshtein(&typo, &near);
                    assert!(distance <= 1 || near.starts_with(&typo), "{typo} suggests {near}, not {spelling}");
                }
            }
        }
    }

    #[test]
    fn several_things_are_parsed_each_by_itself_and_errors_point_into_the_whole_line() {
        let line = "dev a remote ::1 also dev b remote ::2 key 7 also dev c remote ::1 key 8";
        let each = parse_each("segue tunnel", KEYWORDS, &tokens(line)).unwrap();
        let keys: Vec<_> = each.iter().map(|parsed| parsed.value_of("key").cloned()).collect();
        assert_eq!(keys, [None, Some(Value::Number(7)), Some(Value::Number(8))]);
        assert_eq!((each[0].end(), each[1].place_of("key")), (4, Some(9)));
        for (line, message, at) in [
            ("dev a remote ::1 also dev b remot ::2", "unknown word `remot`", 7),
            ("dev a remote also dev b remote ::2", "`remote` needs a value", 3),
            ("dev a remote ::1 also", "`dev` is missing", 5),
            ("also dev a remote ::1", "`dev` is missing", 0),
        ] {
            let error = parse_each("segue tunnel", KEYWORDS, &tokens(line)).expect_err(line);
            assert_eq!((error.message.as_str(), error.place.unwrap().at), (message, at), "{line}");
        }
    }

    #[test]
    fn a_unique_prefix_is_refused_and_named() {
        let (message, place) = wrong("dev sg0 loc 198.18.0.2");
        assert_eq!(message, "unknown word `loc`");
        assert_eq!(place.at, 2);
        assert_eq!(place.note, "did you mean `local`? keywords cannot be abbreviated");
    }

    #[test]
    fn nonsense_gets_no_suggestion() {
        assert_eq!(wrong("dev sg0 zzzzzzzz").1.nearest, None);
        assert_eq!(wrong("dev sg0 198.18.0.2").1.note, "an address needs `remote` or `local` before it");
    }

    #[test]
    fn bad_values_are_pointed_at() {
        let cases = [
            ("mode gree", "did you mean `gre`?"),
            (
                "mode wireguard",
                "expected ipip, sit, gre, gretap, vxlan, geneve, ip6tnl, ipip6, ip6ip6, ip6gre, ip6gretap or eth",
            ),
            ("fdb 02:00:00:00:00,198.18.0.1", "expected MAC,ADDR, as in 02:00:00:00:00:01,198.18.0.3"),
            ("id 16777216", "expected 0 to 16777215"),
            ("ttl 256", "expected 0 to 255, inherit or auto"),
            ("ttl inherrit", "did you mean `inherit`?"),
            ("mtu 67", "expected 68 to 65535 or auto"),
            ("encap-dport 0", "expected 1 to 65535"),
            ("encap-dport +5", "expected 1 to 65535"),
            ("encap-dport 99999999999999999999", "expected 1 to 65535"),
            ("remote 198.18.0.2/30", "expected an address without a length"),
            ("remote 198.18.0.300", "expected an IPv4 or IPv6 address, or a host name"),
            ("addr 198.19.0.1", "expected an address with a length, as in ADDR/30"),
            ("addr 198.19.0.1/33", "expected a length of 0 to 32 after the /"),
            ("addr 2001:db8::1/129", "expected a length of 0 to 128 after the /"),
            ("dev a/b", "a name has no space, '/', ':' or '%'"),
            ("dev sixteen_bytes_xx", "a name has at most 15 bytes"),
            ("key 4294967296", "expected a number to 4294967295 or a dotted quad"),
            ("gro yes", "expected on or off"),
            ("srcport 0 5", "expected 1 to 65535"),
        ];
        for (line, note) in cases {
            let (_, place) = wrong(line);
            assert_eq!((place.at, place.note.as_str()), (1, note), "{line}");
        }
    }

    #[test]
    fn a_range_of_ports_is_two_tokens() {
        let parsed = ok("dev a mode vxlan id 1 srcport 32768 61000 remote ::1");
        assert_eq!(parsed.value_of("srcport"), Some(&Value::Range(32768, 61000)));
        assert_eq!(wrong("srcport 5").0, "`srcport` needs a value");
        assert_eq!(wrong("srcport 5 dev").1.at, 2);
    }

    #[test]
    fn a_missing_value_and_a_missing_word_point_behind_the_end() {
        let (message, place) = wrong("dev sg0 remote");
        assert_eq!((message.as_str(), place.at), ("`remote` needs a value", 3));
        let (message, place) = wrong("dev sg0");
        assert_eq!((message.as_str(), place.at), ("`remote` is missing", 2));
        assert_eq!(wrong("").0, "`dev` is missing");
    }

    #[test]
    fn words_that_contradict_each_other_are_refused() {
        for (line, message) in [
            ("dev a dev b", "`dev` is given twice"),
            ("csum nocsum", "`csum` is given twice"),
            ("key 1 okey 2", "`okey` does not go with `key`"),
            ("dev a remote ::1 mode ipip key 1", "`key` does not go with `mode ipip`"),
            ("dev a remote ::1 encap fou encap-remcsum", "`encap-remcsum` does not go with `encap fou`"),
        ] {
            assert_eq!(wrong(line).0, message, "{line}");
        }
        ok("dev a remote ::1 mode ipip nocsum encap fou noencap-remcsum");
    }

    #[test]
    fn keys_are_numbers_or_dotted_quads() {
        let parsed = ok("dev a remote ::1 ikey 0x2a okey 1.2.3.4");
        assert_eq!(parsed.value_of("ikey"), Some(&Value::Number(42)));
        assert_eq!(parsed.value_of("okey"), Some(&Value::Number(0x0102_0304)));
    }

    #[test]
    fn tos_is_hexadecimal_as_in_iproute2() {
        for (token, number) in [("10", 0x10), ("0x10", 0x10), ("b8", 0xb8), ("FF", 0xff), ("0", 0)] {
            let parsed = ok(&format!("dev a remote ::1 tos {token}"));
            assert_eq!(parsed.value_of("tos"), Some(&Value::Number(number)), "{token}");
        }
        for token in ["100", "-1", "+1", "0x", "ef0", "inherited"] {
            let (message, ..) = wrong(&format!("dev a remote ::1 tos {token}"));
            assert!(message.contains(token), "{message}");
        }
    }

    #[test]
    fn aliases_of_iproute2_are_taken() {
        let parsed = ok("dev a remote ::1 hoplimit 9 tclass inherit noencap-csum6");
        assert_eq!(parsed.value_of("ttl"), Some(&Value::Number(9)));
        assert_eq!(parsed.value_of("tos"), Some(&Value::Name("inherit")));
        assert_eq!(parsed.value_of("encap-csum"), Some(&Value::Switch(false)));
    }
}
