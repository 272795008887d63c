//! `segue top`: a terminal screen of running instances, with a line for each tunnel.
//!
//! - [`table`] makes the lines from the answers of the control sockets, with rates, a history, an order and a filter;
//! - [`view`] is the state of the screen, which keys change;
//! - [`screen`] draws it.
//!
//! # Lifecycle
//! [`run`] takes the terminal over, asks all instances once an interval in a thread of its own, and gives the terminal
//! back when a key ends it, or a panic.
//!
//! # Promises
//! - Meaning is never in the colour alone: the words say it. Without colours, and in a terminal without UTF-8, all is
//!   there.
//! - An instance that does not answer delays no key, and has a line that says so.
//!
//! # Limits
//! It changes nothing, and knows instances only by their control sockets. Histories have at most [`table::HISTORY`]
//! intervals of at most [`table::MOST`] lines.

mod options;
pub mod screen;
pub mod table;
pub mod view;

use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use segue_control::client::Found;
use segue_control::error::{Error, Kind};
use segue_control::model::{Complaint, Instance};
use segue_control::services;

pub use options::{Appearance, Options};
use table::Table;
use view::{Next, View};

/// Longest wait for a key, after which new answers are processed.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Shows the live screen until a key ends it.
///
/// # Errors
/// The error of the terminal.
pub fn run(options: &Options) -> io::Result<()> {
    let answers = poll_instances(options.interval);
    let mut table = Table::default();
    let mut view = View::new(options.filter.clone());
    let mut terminal = ratatui::try_init()?;
    let outcome = loop {
        match answers.try_recv() {
            Ok(instances) if !view.is_paused => table.take(instances),
            Ok(_) | Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        view.follow(&table);
        if let Err(error) = terminal.draw(|frame| screen::draw(frame, &table, &view, options)) {
            break Err(error);
        }
        match event::poll(KEY_WAIT).and_then(|is_ready| if is_ready { event::read().map(Some) } else { Ok(None) }) {
            Ok(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                if view.press(key, &table) == Next::Quit {
                    break Ok(());
                }
            }
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    outcome
}

/// Requests the state of all instances repeatedly, in a thread that ends with the receiver.
fn poll_instances(interval: Duration) -> Receiver<Vec<Instance>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        while sender.send(shown(services::instances())).is_ok() {
            thread::sleep(interval);
        }
    });
    receiver
}

/// Returns the instances that have lines. Those of other users, which may not be asked, have none.
fn shown(found: Found) -> Vec<Instance> {
    let own = found.failed.into_iter().filter(|(_, error)| error.kind != Kind::NoPermission);
    found.instances.into_iter().chain(own.map(|(name, error)| unanswered(name, error))).collect()
}

/// Returns what is known of an instance that does not answer: its name, and why.
fn unanswered(name: String, error: Error) -> Instance {
    let problem = Complaint { what: error.message, why: error.why, fix: Some(error.hint), ..Complaint::default() };
    Instance { name, health: vec![problem], ..Instance::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::instance;

    #[test]
    fn an_instance_that_hangs_keeps_a_line_which_says_so_and_one_of_another_user_has_none() {
        let mut table = Table::default();
        table.take(shown(Found { instances: vec![instance("sg0", 1.0, &[("sg0", 0)])], failed: Vec::new() }));
        let hangs = Error::new(Kind::System, "cannot ask sg0", "kill it").why("it did not answer within 3 s");
        let others = Error::new(Kind::NoPermission, "cannot ask sg1", "sudo segue stat sg1");
        let failed = vec![("sg0".to_owned(), hangs), ("sg1".to_owned(), others)];
        table.take(shown(Found { instances: vec![instance("a", 2.0, &[])], failed }));
        let lines = table.lines().iter().map(|line| (line.name.as_str(), line.state(), line.is_sick()));
        assert_eq!(lines.collect::<Vec<_>>(), [("a", "ok", false), ("sg0", "cannot ask sg0", true)]);
        let problem = &table.lines()[1].health[0];
        assert_eq!(problem.why.as_deref(), Some("it did not answer within 3 s"));
        assert_eq!((problem.fix.as_deref(), table.lines()[1].rates), (Some("kill it"), None));
    }
}
