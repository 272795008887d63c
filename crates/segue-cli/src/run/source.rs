//! The text of a configuration file, and errors that point into it.

use std::ops::Range;

use segue_control::error::{Error, Kind, Source};

/// Largest number of errors reported for a file.
pub(super) const MOST_ERRORS: usize = 50;

/// The name and text of a configuration file.
#[derive(Clone, Debug)]
pub(super) struct Text {
    /// Name of the file, as the user gave it.
    pub(super) file: String,
    pub(super) text: String,
}

impl Text {
    /// Returns an error that points at the bytes `span`.
    pub(super) fn error(&self, span: &Range<usize>, message: impl Into<String>, note: impl Into<String>) -> Error {
        let mut error = Error::new(Kind::Config, message, "segue help run");
        error.source = Some(Box::new(self.place(span, note.into(), None)));
        error
    }

    /// Moves the position of `error` to the bytes `span`.
    pub(super) fn at(&self, span: &Range<usize>, mut error: Error) -> Error {
        let (note, nearest) = error.place.take().map_or_else(Default::default, |place| (place.note, place.nearest));
        error.source = Some(Box::new(self.place(span, note, nearest)));
        error.kind = Kind::Config;
        error
    }

    /// Returns the line number of a byte, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count()
    }

    fn place(&self, span: &Range<usize>, note: String, nearest: Option<String>) -> Source {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let text: String = self.text.get(start..).unwrap_or_default().lines().next().unwrap_or_default().to_owned();
        let column = self.text.get(start..span.start).unwrap_or_default().chars().count();
        let wide = self.text.get(span.clone()).unwrap_or_default().lines().next().unwrap_or_default().chars().count();
        let width = wide.clamp(1, text.chars().count().saturating_sub(column).max(1));
        Source {
            file: self.file.clone(),
            line: self.line(span.start),
            column: column + 1,
            width,
            text,
            note,
            nearest,
            more: Vec::new(),
            left_out: 0,
        }
    }
}
