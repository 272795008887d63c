//! The keyword grammar of iproute2: `word value word value`, in any order, without dashes.
//!
//! One table describes every keyword. The parser, the help, the suggestions and the names in JSON come from it, so
//! that they agree; [`plan::plan`] makes the plan of a tunnel of the parsed words. Only full keywords are accepted: a
//! script must not change its meaning when a keyword is added.
//!
//! # Promises
//! - A refusal is a [`segue_control::error::Error`] that points at the wrong word, and suggests a similar one.
//! - Parsing opens nothing and asks nothing: names of hosts and interfaces are checked by their form only. The plan
//!   has the address of a host, so that [`plan::plan`] asks the resolver for names, and [`plan::plan_with`] its caller.

pub mod help;
pub mod parse;
pub mod peer;
pub mod plan;
pub mod tunnel;

/// The value that follows a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// No value; `no` before the word switches it off.
    Switch,
    /// A number in this range, or one of the names.
    Number {
        /// Smallest number that the word takes.
        min: u64,
        /// Largest number that the word takes.
        max: u64,
        /// Names that stand for a number.
        or: &'static [&'static str],
    },
    /// A hexadecimal number of at most `max`, with or without `0x`, or one of the names: iproute2's `tos`.
    Hex {
        /// Largest number that the word takes.
        max: u64,
        /// Names that stand for a number.
        or: &'static [&'static str],
    },
    /// Two UDP ports, the first and the last of a range: two tokens.
    Ports,
    /// A 32-bit key: a number or a dotted quad.
    Key,
    /// An IPv4 or IPv6 address.
    Address,
    /// An IPv4 or IPv6 address, or the name of a host.
    Host,
    /// An address with a prefix length.
    Prefix,
    /// One of these names.
    OneOf(&'static [&'static str]),
    /// An Ethernet address, a comma, and the IP address of the remote that has it.
    Neighbour,
    /// An Ethernet address.
    Mac,
    /// Encapsulations with their UDP ports, with commas between: `vxlan:8472,gue`.
    Listeners,
    /// A path, or one of the names.
    File {
        /// Names that stand for no file.
        or: &'static [&'static str],
    },
    /// The name of a network interface.
    Device,
}

impl Takes {
    /// Returns the number of tokens that follow the word.
    pub fn tokens(self) -> usize {
        match self {
            Takes::Switch => 0,
            Takes::Ports => 2,
            _ => 1,
        }
    }
}

/// One keyword of the grammar.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The keyword as it is written.
    pub name: &'static str,
    /// Other spellings, for users of iproute2.
    pub aliases: &'static [&'static str],
    /// The value that follows.
    pub takes: Takes,
    /// The placeholder of the value in help.
    pub metavar: &'static str,
    /// The default, as it would be written; empty when there is none.
    pub default: &'static str,
    /// The unit of a number; empty for none.
    pub unit: &'static str,
    /// One sentence on the keyword.
    pub help: &'static str,
    /// Other keywords that must have one of these values.
    pub needs: &'static [(&'static str, &'static [&'static str])],
    /// Other keywords that this one contradicts.
    pub conflicts: &'static [&'static str],
    /// Another keyword that lifts this one's requirements, and with which this one is not required; empty for none.
    pub unless: &'static str,
    /// Whether the keyword is required.
    pub required: bool,
    /// Whether the keyword may be repeated.
    pub repeats: bool,
}

impl Word {
    /// A keyword with default settings, to be varied by the tables.
    pub const PLAIN: Word = Word {
        name: "",
        aliases: &[],
        takes: Takes::Switch,
        metavar: "",
        default: "",
        unit: "",
        help: "",
        needs: &[],
        conflicts: &[],
        unless: "",
        required: false,
        repeats: false,
    };

    /// Returns every spelling, and whether it switches on: `csum` is on, `nocsum` off.
    pub fn spellings(&self) -> impl Iterator<Item = (String, bool)> + '_ {
        let names = std::iter::once(self.name).chain(self.aliases.iter().copied());
        names.flat_map(|name| {
            let off = (self.takes == Takes::Switch).then(|| (format!("no{name}"), false));
            std::iter::once((name.to_owned(), true)).chain(off)
        })
    }
}
