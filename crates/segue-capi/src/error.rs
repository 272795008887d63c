//! Error codes: fixed ones, and one range for each list of reasons of the engine.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use segue::easy::ReadError;
use segue::encap::{DecapRefusal, EncapRefusal};
use segue::reason::Reason;
use segue::{gso, virtio};

/// Error code for a null pointer where none is allowed.
pub(crate) const NULL: isize = -1;
/// Error code for an argument out of its range.
pub(crate) const ARGUMENT: isize = -2;
/// Error code for too little memory for the results, or too few array elements.
pub(crate) const ROOM: isize = -3;
/// Error code for a fault of the library: it panicked. The object that was passed must be freed.
pub(crate) const PANIC: isize = -4;
/// Error code for a configuration that contradicts itself.
pub(crate) const CONFIG: isize = -5;

const VIRTIO: isize = -100;
const GSO: isize = -200;
const ENCAP: isize = -300;
const DECAP: isize = -400;

fn code<R: Reason>(base: isize, reason: R) -> isize {
    base - reason.index() as isize
}

/// A reason for which a packet was refused, with an error code in C.
pub(crate) trait Code {
    fn code(self) -> isize;
}

impl Code for gso::Refusal {
    fn code(self) -> isize {
        code(GSO, self)
    }
}

impl Code for virtio::Refusal {
    fn code(self) -> isize {
        code(VIRTIO, self)
    }
}

impl Code for EncapRefusal {
    fn code(self) -> isize {
        code(ENCAP, self)
    }
}

impl Code for DecapRefusal {
    fn code(self) -> isize {
        code(DECAP, self)
    }
}

impl Code for ReadError {
    fn code(self) -> isize {
        match self {
            ReadError::Header(reason) => reason.code(),
            ReadError::Split(reason) => reason.code(),
            _ => ARGUMENT,
        }
    }
}

struct Text {
    code: isize,
    name: CString,
    text: CString,
}

fn texts() -> &'static [Text] {
    static TEXTS: OnceLock<Vec<Text>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let mut all = Vec::new();
        let mut add = |code, name: &str, text: &str| {
            let text_of = |text: &str| CString::new(text).unwrap_or_default();
            all.push(Text { code, name: text_of(name), text: text_of(text) });
        };
        add(NULL, "null", "A pointer that must not be null is.");
        add(ARGUMENT, "argument", "An argument is out of its range.");
        add(ROOM, "room", "The memory for the results is too small.");
        add(PANIC, "panic", "The library has a fault: it panicked.");
        add(CONFIG, "config", "The configuration contradicts itself.");
        fn list<R: Reason>(base: isize, add: &mut impl FnMut(isize, &str, &str)) {
            R::ALL.iter().for_each(|&reason| add(code(base, reason), reason.name(), reason.help()));
        }
        list::<virtio::Refusal>(VIRTIO, &mut add);
        list::<gso::Refusal>(GSO, &mut add);
        list::<EncapRefusal>(ENCAP, &mut add);
        list::<DecapRefusal>(DECAP, &mut add);
        all
    })
}

/// Returns the name and the description of an error.
pub(crate) fn words(code: isize) -> (&'static CStr, &'static CStr) {
    texts()
        .iter()
        .find(|text| text.code == code)
        .map_or((c"unknown", c"No such error."), |text| (&text.name, &text.text))
}
