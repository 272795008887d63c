//! Rows on ECN (RFC 3168, section 5.3): no CE mark is lost, for every sequence of codepoints, inside and outside of
//! tunnels.

use super::shared::{row, set_tos};
use crate::conformance::{On, Row, Script, gives};

fn inner(s: &mut Script, first: u8, second: u8) {
    set_tos(&mut s.packet().ip, first);
    s.run(1);
    set_tos(&mut s.packet().ip, second);
    s.run(1);
}

fn outer(s: &mut Script, first: u8, second: u8) {
    set_tos(s.outer(), first);
    s.run(1);
    set_tos(s.outer(), second);
    s.run(1);
}

macro_rules! pairs {
    ($($first:literal $second:literal $trains:literal,)*) => {
        pub(super) const ROWS: &[Row] = &[$(
            row(concat!("ecn/", $first, "_", $second), On::Any, gives($trains), |s| inner(s, $first, $second)),
            row(concat!("ecn/outer4_", $first, "_", $second), On::Outer4, gives($trains), |s| outer(s, $first, $second)),
            row(concat!("ecn/outer6_", $first, "_", $second), On::Outer6, gives($trains), |s| outer(s, $first, $second)),
        )*];
    };
}

pairs! {
    0 0 "2", 0 1 "1 1", 0 2 "1 1", 0 3 "1 1",
    1 0 "1 1", 1 1 "2", 1 2 "1 1", 1 3 "1 1",
    2 0 "1 1", 2 1 "1 1", 2 2 "2", 2 3 "1 1",
    3 0 "1 1", 3 1 "1 1", 3 2 "1 1", 3 3 "2",
}
