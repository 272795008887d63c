#![doc = include_str!("../../../docs/adopting.md")]
