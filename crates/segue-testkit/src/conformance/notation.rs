//! The notation for trains in the table.

use std::fmt;

/// A train, as the indices of its frames in the case.
///
/// In the table: `3` are the next three frames as one train, `1` is the next one alone, `0+2` are frames 0 and 2 as a
/// train, `#2` is frame 2 alone, `<3` are the next three, pure acknowledgments, of which only the last leaves, and
/// `0<2` are two that are not next to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Train {
    /// The frames, in the order of their bytes.
    pub frames: Vec<usize>,
    /// Whether the frames are pure acknowledgments of which only the last leaves.
    pub is_newest: bool,
}

impl Train {
    /// Makes a train of one frame.
    pub fn single(frame: usize) -> Train {
        Train { frames: vec![frame], is_newest: false }
    }

    /// Parses trains written in the notation of the table.
    ///
    /// # Panics
    /// Panics if `text` is not in this notation.
    pub fn parse(text: &str) -> Vec<Train> {
        parse(text)
    }
}

/// Parses trains in the notation of the table.
///
/// # Panics
/// Panics if the text is not in this notation: the table is part of the program.
pub(super) fn parse(text: &str) -> Vec<Train> {
    let mut next = 0;
    let mut trains = Vec::new();
    for word in text.split(' ') {
        let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("`{word}` in `{text}`"));
        let (frames, is_newest) = if let Some(frame) = word.strip_prefix('#') {
            (vec![number(frame)], false)
        } else if let Some(count) = word.strip_prefix('<') {
            ((next..next + number(count)).collect(), true)
        } else if word.contains(['+', '<']) {
            (word.split(['+', '<']).map(number).collect(), word.contains('<'))
        } else {
            ((next..next + number(word)).collect(), false)
        };
        next = frames.last().map_or(next, |last: &usize| last + 1);
        trains.push(Train { frames, is_newest });
    }
    trains
}

/// A `Display` of trains in the notation of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written<'a>(pub(super) &'a [Train]);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut next = 0;
        for (index, train) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            let Some((first, last)) = train.frames.first().zip(train.frames.last()) else { continue };
            if train.frames.iter().copied().eq(next..next + train.frames.len()) {
                write!(f, "{space}{}{}", if train.is_newest { "<" } else { "" }, train.frames.len())?;
            } else if train.frames.len() == 1 {
                write!(f, "{space}#{first}")?;
            } else {
                let numbers: Vec<String> = train.frames.iter().map(usize::to_string).collect();
                write!(f, "{space}{}", numbers.join(if train.is_newest { "<" } else { "+" }))?;
            }
            next = last + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["1", "3 1 2", "0+2 1+3", "1 <3 1", "2 #4 #3 #2", "1+2 #0 1", "1 1 2<4 3<5"] {
            let trains = parse(text);
            assert_eq!(parse(&Written(&trains).to_string()), trains, "{text}");
        }
        assert_eq!(parse("2 #3 <2")[2], Train { frames: vec![4, 5], is_newest: true });
    }
}
