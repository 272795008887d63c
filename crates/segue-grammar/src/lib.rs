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

/// Type of the value after a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The keyword takes no value; `no` in front switches it off.
    Switch,
    /// The value is a number in a range, or one of the names.
    Number {
        /// Smallest number that the word takes.
        min: u64,
        /// Largest number that the word takes.
        max: u64,
        /// Names that stand for a number.
        or: &'static [&'static str],
    },
    /// The value is a hexadecimal number of at most `max`, with or without `0x`, or one of the names: iproute2's `tos`.
    Hex {
        /// Largest number that the word takes.
        max: u64,
        /// Names that stand for a number.
        or: &'static [&'static str],
    },
    /// The value is two tokens: the first and the last UDP port of a range.
    Ports,
    /// The value is a 32-bit key: a number or a dotted quad.
    Key,
    /// The value is an IPv4 or IPv6 address.
    Address,
    /// The value is an IPv4 or IPv6 address, or the name of a host.
    Host,
    /// The value is an address with a prefix length.
    Prefix,
    /// The value is one of these names.
    OneOf(&'static [&'static str]),
    /// The value is an Ethernet address, a comma, and the IP address of its remote.
    Neighbour,
    /// The value is an Ethernet address.
    Mac,
    /// The value is a comma-separated list of encapsulations with their UDP ports: `vxlan:8472,gue`.
    Listeners,
    /// The value is a path, or one of the names.
    File {
        /// Names that stand for no file.
        or: &'static [&'static str],
    },
    /// The value is the name of a network interface.
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
    /// The keyword's main spelling.
    pub name: &'static str,
    /// Other spellings, for users of iproute2.
    pub aliases: &'static [&'static str],
    /// Type of the value after the keyword.
    pub takes: Takes,
    /// The placeholder of the value in help.
    pub metavar: &'static str,
    /// Default of the keyword as typed; empty when there is none.
    pub default: &'static str,
    /// The unit of a number; empty for none.
    pub unit: &'static str,
    /// Description of the keyword, one sentence.
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
    /// A keyword with default settings, as a base for table entries.
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
