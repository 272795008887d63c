//! The keyword grammar of iproute2: `word value word value`, in any order, without dashes.
//!
//! One table describes every word. The parser, the help, the suggestions and the names in JSON come from it, so they
//! cannot disagree. Only full words are taken: a script must not change its meaning when a word is added.

pub(crate) mod help;
pub(crate) mod parse;
pub(crate) mod tunnel;

/// What follows a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Nothing; `no` before the word switches it off.
    Switch,
    /// A number in this range, or one of the names.
    Number {
        /// Smallest number.
        min: u64,
        /// Largest number.
        max: u64,
        /// Names that stand for a number.
        or: &'static [&'static str],
    },
    /// A hexadecimal number of at most this, `0x` or not before it, or one of the names: iproute2's `tos`.
    Hex {
        /// Largest number.
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
    /// An address with a prefix length.
    Prefix,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// An Ethernet address, a comma, and the address of who has it.
    Neighbour,
    /// The name of a network interface.
    Device,
}

impl Takes {
    /// How many tokens follow the word.
    pub(crate) fn tokens(self) -> usize {
        match self {
            Takes::Switch => 0,
            Takes::Ports => 2,
            _ => 1,
        }
    }
}

/// One word of the grammar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// The word.
    pub(crate) name: &'static str,
    /// Other spellings, for people who know them from iproute2.
    pub(crate) aliases: &'static [&'static str],
    /// What follows.
    pub(crate) takes: Takes,
    /// What stands for the value in help.
    pub(crate) metavar: &'static str,
    /// The value when the word is not given, as it would be written; empty when there is none.
    pub(crate) default: &'static str,
    /// The unit of a number; empty for none.
    pub(crate) unit: &'static str,
    /// One sentence.
    pub(crate) help: &'static str,
    /// Other words that must have one of these values for this word to mean anything.
    pub(crate) needs: &'static [(&'static str, &'static [&'static str])],
    /// Other words that cannot stand beside it.
    pub(crate) conflicts: &'static [&'static str],
    /// Whether it must be given.
    pub(crate) required: bool,
    /// Whether it may be given more than once.
    pub(crate) repeats: bool,
}

impl Word {
    /// A word with nothing special about it, to be varied by the tables.
    pub(crate) const PLAIN: Word = Word {
        name: "",
        aliases: &[],
        takes: Takes::Switch,
        metavar: "",
        default: "",
        unit: "",
        help: "",
        needs: &[],
        conflicts: &[],
        required: false,
        repeats: false,
    };

    /// Every spelling with its meaning for a switch: `csum` is on, `nocsum` off.
    pub(crate) fn spellings(&self) -> impl Iterator<Item = (String, bool)> + '_ {
        let names = std::iter::once(self.name).chain(self.aliases.iter().copied());
        names.flat_map(|name| {
            let off = (self.takes == Takes::Switch).then(|| (format!("no{name}"), false));
            std::iter::once((name.to_owned(), true)).chain(off)
        })
    }
}
