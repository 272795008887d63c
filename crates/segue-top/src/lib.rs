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
//! - An instance that does not answer delays no key.
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
use segue_control::client;
use segue_control::model::Instance;

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
        while sender.send(client::all().instances).is_ok() {
            thread::sleep(interval);
        }
    });
    receiver
}
