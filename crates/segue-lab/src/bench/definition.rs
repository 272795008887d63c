//! The definition of a bench as data: its points, its layout, and the selection of points.

use std::time::Duration;

use super::layout::Layout;
use super::point::{Part, Point};
use super::settings::{Select, Settings};
use crate::LabError;

/// A bench: its measurements and the layout of its table.
#[derive(Debug)]
pub struct Bench {
    /// Name on the command line and in JSON.
    pub name: &'static str,
    /// Title of the bench, one line.
    pub title: &'static str,
    /// All points that the bench can measure.
    pub(super) points: Vec<Point>,
    /// The link whose rows are measured if no rows are chosen.
    pub(super) link: Option<&'static str>,
    /// Whether each host has a processor of its own.
    pub(super) pinned: bool,
    /// Layout of the table as text.
    pub layout: Layout,
    /// Facts about the set-up for the table's machine part.
    pub(super) details: Vec<(&'static str, String)>,
}

impl Bench {
    /// Returns the points chosen by the settings, in the order of the table.
    pub(super) fn chosen(&self, settings: &Settings) -> Result<Vec<&Point>, LabError> {
        let widest = match settings.select {
            Select::Quick => Part::Quick,
            Select::Usual => Part::Usual,
            Select::All => Part::Full,
        };
        let own = self.link.filter(|_| settings.rows.is_empty() && settings.select != Select::All);
        let link = settings.link.as_deref().or(own);
        let wanted = |point: &&Point| {
            let chosen = match settings.rows.is_empty() {
                true => point.part <= widest,
                false => settings.rows.iter().any(|words| point.has(words)),
            };
            chosen
                && (settings.beside.is_some() || !point.beside)
                && link.is_none_or(|link| point.labels.find("link").is_some_and(|own| own == link))
        };
        let chosen: Vec<&Point> = self.points.iter().filter(wanted).collect();
        if chosen.is_empty() {
            let wanted: Vec<&str> = settings.rows.iter().chain(&settings.link).map(String::as_str).collect();
            let (wanted, known) = (wanted.join("`, `"), self.words().join(" "));
            let text = format!("no row of bench {} has `{wanted}`; the words are: {known}", self.name);
            return Err(LabError::Usage(text));
        }
        Ok(chosen)
    }

    /// Returns whether rows are measured with hosts in namespaces, and not in a model.
    pub fn has_hosts(&self) -> bool {
        self.name != "napi"
    }

    /// Returns the default numbers of runs and of seconds.
    pub fn usual(&self) -> (u32, u32) {
        if self.has_hosts() { (5, 2) } else { (2, 1) }
    }

    /// Returns all words by which rows can be chosen.
    pub fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for word in self.points.iter().flat_map(Point::words) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }

    /// Returns the number of chosen rows, and the approximate time to measure them.
    pub fn size(&self, settings: &Settings) -> Result<(usize, Duration), LabError> {
        let chosen = self.chosen(settings)?;
        let loads: u32 = chosen.iter().map(|point| point.loads).sum();
        Ok((chosen.len(), self.each(settings) * settings.runs * loads))
    }

    /// Returns the duration of a measurement with one load, including set-up and removal.
    pub(super) fn each(&self, settings: &Settings) -> Duration {
        let seconds = u64::from(settings.seconds) * 1000;
        // The model is faster than what it stands for.
        Duration::from_millis(if self.has_hosts() { seconds + 1000 } else { seconds })
    }
}
