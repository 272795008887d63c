//! HTML reports of segue's benches.
//!
//! [`document`] reads what `segue bench -j` prints (`segue.bench/1`). [`compare`] says what changed between two
//! measurements beyond their spread, [`html`] makes one page of any number of benches.
//!
//! # Promises
//! - The page is one file without script and without references to others; it has light and dark colours, a print form,
//!   and fits a phone. Each chart has a description and a table with the same numbers.
//! - Results are shown as they are: rows that are worse than a published figure too.
//!
//! # Limits
//! It measures nothing and reads no file: the program does.

pub mod compare;
pub mod document;
mod escape;
pub mod html;
mod style;
