//! The state of the screen, which keys change.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::table::{Order, Table};

/// Length of the longest filter, characters.
const FILTER: usize = 40;

/// Action that a key starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The screen stays open.
    Stay,
    /// The program ends.
    Quit,
}

/// State of the screen: filter, order, selection.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Sort order of the lines.
    pub order: Order,
    /// Whether the sort order is reversed.
    pub is_reversed: bool,
    /// Text that a line must contain to be shown.
    pub filter: String,
    /// Whether keys go into the filter.
    pub is_typing: bool,
    /// Whether the details of the chosen line are shown.
    pub has_details: bool,
    /// Whether the list of the keys is shown.
    pub has_help: bool,
    /// Whether new answers are left out.
    pub is_paused: bool,
    /// The name of the chosen line.
    chosen: Option<String>,
    /// The position of the chosen line.
    at: usize,
}

impl View {
    /// Returns the view at the start.
    pub fn new(filter: String) -> View {
        View { filter, ..View::default() }
    }

    /// Returns the position of the chosen line.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Keeps the selection on its line when lines were added, removed or moved.
    pub fn follow(&mut self, table: &Table) {
        let lines = table.ordered(self.order, self.is_reversed, &self.filter);
        let same = self.chosen.as_ref().and_then(|name| lines.iter().position(|line| line.name == *name));
        self.at = same.unwrap_or(self.at).min(lines.len().saturating_sub(1));
        self.chosen = lines.get(self.at).map(|line| line.name.clone());
    }

    fn choose(&mut self, at: usize, table: &Table) {
        self.at = at;
        self.chosen = None;
        self.follow(table);
    }

    /// Handles a pressed key.
    pub fn press(&mut self, key: KeyEvent, table: &Table) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::Stay };
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.is_typing = false;
                    self.filter.clear();
                }
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if self.filter.chars().count() < FILTER && !c.is_control() => self.filter.push(c),
                _ => {}
            }
            self.follow(table);
            return Next::Stay;
        }
        const PAGE: usize = 10;
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Esc if self.has_help => self.has_help = false,
            KeyCode::Esc if self.has_details => self.has_details = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Enter | KeyCode::Char('w') => self.has_details = !self.has_details,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.choose(self.at.saturating_sub(1), table),
            KeyCode::Down | KeyCode::Char('j') => self.choose(self.at + 1, table),
            KeyCode::PageUp => self.choose(self.at.saturating_sub(PAGE), table),
            KeyCode::PageDown => self.choose(self.at + PAGE, table),
            KeyCode::Home => self.choose(0, table),
            KeyCode::End => self.choose(usize::MAX, table),
            _ => {}
        }
        self.follow(table);
        Next::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::instance;

    fn press(view: &mut View, table: &Table, keys: &str) -> Next {
        let mut next = Next::Stay;
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                'v' => KeyCode::Down,
                '^' => KeyCode::Up,
                c => KeyCode::Char(c),
            };
            next = view.press(KeyEvent::new(code, KeyModifiers::NONE), table);
        }
        next
    }

    #[test]
    fn keys_choose_sort_filter_and_end() {
        let mut table = Table::default();
        table.take(vec![instance("a", 1.0, &[("alpha", 0), ("beta", 0), ("gamma", 0)])]);
        let mut view = View::new(String::new());
        view.follow(&table);
        press(&mut view, &table, "vvvvv");
        assert_eq!(view.at(), 2);
        press(&mut view, &table, "^");
        assert_eq!(view.at(), 1);
        // The chosen line stays chosen in another order.
        press(&mut view, &table, "vr");
        assert_eq!((view.at(), view.chosen.as_deref()), (0, Some("gamma")));
        press(&mut view, &table, "/alq\n");
        assert_eq!((view.filter.as_str(), view.is_typing, view.at()), ("alq", false, 0));
        press(&mut view, &table, "\u{1b}s\n");
        assert!(view.filter.is_empty() && view.order == Order::Received && view.has_details);
        assert_eq!(press(&mut view, &table, "q"), Next::Quit);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(control, &table), Next::Quit);
    }
}
