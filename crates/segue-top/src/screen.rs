//! The drawing of the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TextLine, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Rows, TableState, Wrap};
use segue_control::error::{printable, printable_line};
use segue_control::model::{Complaint, Instance};
use segue_control::units;

use crate::options::{Appearance, Options};
use crate::table::{Line, Rate, Table};
use crate::view::View;

/// Largest number of reasons of a kind that the details list.
const REASONS: usize = 4;

impl Appearance {
    /// Returns the style of a problem: bold, and coloured on a terminal with colours.
    fn alarm(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.has_colour { style.fg(Color::Red) } else { style }
    }

    /// Returns the style of a notice.
    fn notice(self) -> Style {
        if self.has_colour { Style::new().fg(Color::Yellow) } else { Style::new() }
    }

    /// Returns a line of bars, one for each value, the newest at the right.
    fn spark(self, values: &[f64], width: usize) -> String {
        const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII: [char; 8] = ['_', '.', ',', '-', '=', '+', '*', '#'];
        let bars = if self.is_ascii { ASCII } else { BLOCKS };
        let shown = &values[values.len().saturating_sub(width)..];
        let most = shown.iter().copied().fold(0.0, f64::max);
        let bar = |value: &f64| {
            let share = if most > 0.0 { value / most } else { 0.0 };
            bars[((share * 7.0).ceil() as usize).min(7)]
        };
        format!("{:>width$}", shown.iter().map(bar).collect::<String>())
    }
}

/// Draws the screen of `segue top`.
pub fn draw(frame: &mut Frame<'_>, table: &Table, view: &View, options: &Options) {
    let lines = table.ordered(view.order, view.is_reversed, &view.filter);
    let details = if view.has_details { (frame.area().height / 2).min(18) } else { 0 };
    let areas = [Constraint::Length(1), Constraint::Min(3), Constraint::Length(details), Constraint::Length(1)];
    let [head, body, below, foot] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(Paragraph::new(heading(table, view, options)), head);
    if view.has_help {
        frame.render_widget(Paragraph::new(HELP), body);
    } else if lines.is_empty() {
        let text = if table.lines().is_empty() { "nothing runs; segue help tunnel" } else { "no line has this filter" };
        frame.render_widget(Paragraph::new(text), body);
    } else {
        list(frame, body, &lines, table, view, options.appearance);
    }
    if let Some(line) = lines.get(view.at()).filter(|_| details > 0) {
        let text = describe(line, table, options.appearance, usize::from(below.width));
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), below);
    }
    let keys = match view.is_typing {
        true => format!("filter: {}_   Enter keeps it, Esc ends it", view.filter),
        false => "q quit  Enter details  s sort  r reverse  / filter  p pause  ? keys".to_owned(),
    };
    frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::REVERSED)), foot);
}

fn heading(table: &Table, view: &View, options: &Options) -> TextLine<'static> {
    let (all, sick) = (table.lines().len(), table.lines().iter().filter(|line| line.is_sick()).count());
    let total = |at: usize| -> f64 { table.lines().iter().map(|line| line.rates.map_or(0.0, |r| r[at].bits)).sum() };
    let direction = if view.is_reversed { ", reversed" } else { "" };
    let mut text = format!(
        "segue top   {all} running   rx {}bit/s   tx {}bit/s   by {}{direction}   every {} s",
        units::rate(total(0)),
        units::rate(total(1)),
        view.order.name(),
        options.interval.as_secs_f64()
    );
    if !view.filter.is_empty() {
        text.push_str(&format!("   filter {}", printable(&view.filter)));
    }
    if view.is_paused {
        text.push_str("   PAUSED");
    }
    let mut spans = vec![Span::raw(text)];
    if sick > 0 {
        spans.push(Span::styled(format!("   {sick} NOT WELL"), options.appearance.alarm()));
    }
    TextLine::from(spans)
}

fn list(frame: &mut Frame<'_>, area: Rect, lines: &[&Line], table: &Table, view: &View, appearance: Appearance) {
    let wide = area.width >= 100;
    let name = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(4).clamp(4, 20) as u16;
    let spark: u16 = if wide { 20 } else { 8 };
    let mut heads = vec!["NAME", "RX bit/s", "TX bit/s", "DROPS", "HEARD", "RATE", "HEALTH"];
    let mut widths = vec![name, 8, 8, 6, 6, spark].into_iter().map(Constraint::Length).collect::<Vec<_>>();
    widths.push(Constraint::Min(8));
    if wide {
        heads.splice(1..1, ["KIND"]);
        heads.splice(4..4, ["RX pkt/s", "TX pkt/s"]);
        widths.splice(1..1, [Constraint::Length(14)]);
        widths.splice(4..4, [Constraint::Length(8), Constraint::Length(8)]);
    }
    let row = |line: &&Line| {
        let rate = |at: usize, of: fn(&Rate) -> f64| {
            line.rates.map_or_else(|| "-".to_owned(), |rates| units::rate(of(&rates[at])))
        };
        let right = |text: String, width: usize| Cell::from(format!("{text:>width$}"));
        let history: Vec<f64> = table.history(&line.name).map(|[received, sent]| received + sent).collect();
        let state = printable_line(line.state());
        let style = match (line.is_sick(), line.health.is_empty()) {
            (true, _) => appearance.alarm(),
            (false, false) => appearance.notice(),
            (false, true) => Style::new(),
        };
        let age = line.received_age_s.map_or_else(|| "-".to_owned(), |age| units::short_duration(age as u64));
        let mut cells = vec![
            Cell::from(printable(&line.name)),
            right(rate(0, |rate| rate.bits), 8),
            right(rate(1, |rate| rate.bits), 8),
            right(line.drops.to_string(), 6),
            right(age, 6),
            Cell::from(appearance.spark(&history, usize::from(spark))),
            Cell::from(Span::styled(state, style)),
        ];
        if wide {
            cells.splice(1..1, [Cell::from(printable_line(&line.kind))]);
            cells.splice(4..4, [right(rate(0, |rate| rate.packets), 8), right(rate(1, |rate| rate.packets), 8)]);
        }
        Row::new(cells)
    };
    let heads = Row::new(heads).style(Style::new().add_modifier(Modifier::BOLD));
    let rows = Rows::new(lines.iter().map(row), widths)
        .header(heads)
        .highlight_symbol("> ")
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(Some(view.at()));
    frame.render_stateful_widget(rows, area, &mut state);
}

/// Returns the details of a line: its endpoints, its problems, its rates so far, and its reasons.
fn describe(line: &Line, table: &Table, appearance: Appearance, width: usize) -> Vec<TextLine<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut text = vec![TextLine::styled(format!("{}   {}", printable(&line.name), printable_line(&line.kind)), bold)];
    let instance = table.instance(line);
    if let Some(tunnel) = instance.and_then(|instance| instance.tunnels.get(&line.name)) {
        let ends = format!(
            "{} -> {}   underlay {}   mtu {}   {} received, {} refused",
            printable(&tunnel.local),
            printable(&tunnel.remote),
            printable(&tunnel.underlay),
            tunnel.mtu,
            units::count(tunnel.received),
            units::count(tunnel.refused)
        );
        text.push(TextLine::raw(ends));
    }
    for complaint in &line.health {
        let style = if complaint.notice { appearance.notice() } else { appearance.alarm() };
        text.extend(problem(complaint, style));
    }
    let room = width.saturating_sub(24).max(10);
    for (at, name) in ["rx", "tx"].into_iter().enumerate() {
        let history: Vec<f64> = table.history(&line.name).map(|rates| rates[at]).collect();
        let most = history.iter().copied().fold(0.0, f64::max);
        let bars = appearance.spark(&history, room.min(history.len().max(1)));
        text.push(TextLine::raw(format!("{name}  {bars}  at most {}bit/s", units::rate(most))));
    }
    if let Some(instance) = instance {
        text.extend(instance.offloads.iter().filter(|(_, offload)| !offload.on).map(|(name, offload)| {
            let why = offload.why.as_deref().map(|why| format!(": {}", printable_line(why))).unwrap_or_default();
            TextLine::raw(format!("offload {} off{why}", printable(name)))
        }));
        text.extend(reasons(instance, &line.name));
    }
    text
}

/// Returns a problem with its reason and its remedy.
fn problem(complaint: &Complaint, style: Style) -> Vec<TextLine<'static>> {
    let head = if complaint.notice { "notice" } else { "problem" };
    let mut text = vec![TextLine::styled(format!("{head}: {}", printable_line(&complaint.what)), style)];
    let more = [("why", &complaint.why), ("fix", &complaint.fix)];
    let more = more.into_iter().filter_map(|(label, part)| Some((label, part.as_ref()?)));
    text.extend(more.map(|(label, part)| TextLine::raw(format!("  {label}: {}", printable_line(part)))));
    text
}

/// Returns the most frequent reasons of a line's port and of the outside, with their sentences.
fn reasons(instance: &Instance, name: &str) -> Vec<TextLine<'static>> {
    let several = instance.tunnels.len() > 1;
    let ports = || instance.ports.iter().filter(|(port, _)| !several || *port == name).map(|(_, port)| port);
    let mut text = Vec::new();
    for (group, head) in [("drops", "dropped"), ("refusals", "stayed alone"), ("flushes", "trains ended")] {
        let mut found: Vec<(&str, u64)> = Vec::new();
        for (reason, count) in ports().flat_map(|port| match group {
            "drops" => &port.drops,
            "refusals" => &port.refusals,
            _ => &port.flushes,
        }) {
            match found.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum += count,
                None => found.push((reason, *count)),
            }
        }
        found.retain(|(_, count)| *count > 0);
        found.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        for (reason, count) in found.into_iter().take(REASONS) {
            let sentence = instance.reasons.get(group).and_then(|known| known.get(reason));
            let sentence = sentence.map(|sentence| format!(": {}", printable_line(sentence))).unwrap_or_default();
            let count = units::count(count);
            text.push(TextLine::raw(format!("{head} {count} {}{sentence}", printable(reason))));
        }
    }
    text
}

const HELP: &str = "\
 Up Down j k   the line above, below      PageUp PageDown Home End
 Enter w       details of the line: where it goes, problems with their remedies, reasons
 s             sort by name, rx, tx, drops, health      r  the other way round
 /             only lines that contain a text           Esc  all again
 p Space       stop and go on
 q Ctrl-C      end

 RX and TX are of the other end's side: received from it, sent to it.
 HEARD is the time since the last packet from the remote; RATE has a bar for each interval.
";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use segue_control::model::Complaint;

    use super::*;
    use crate::table::tests::instance;

    fn table() -> Table {
        let mut table = Table::default();
        table.take(vec![instance("a", 1.0, &[("alpha", 0), ("beta", 0)])]);
        let mut later = instance("a", 2.0, &[("alpha", 125_000_000), ("beta", 0)]);
        later.health = vec![Complaint {
            what: "the other end refuses".into(),
            why: Some("no tunnel listens there".into()),
            fix: Some("start it there".into()),
            tunnels: vec!["beta".into()],
            ..Complaint::default()
        }];
        table.take(vec![later]);
        table
    }

    fn options(has_colour: bool, is_ascii: bool) -> Options {
        let appearance = Appearance { has_colour, is_ascii };
        Options { interval: Duration::from_secs(1), filter: String::new(), appearance }
    }

    /// Returns the screen of this size as text.
    fn drawn(table: &Table, view: &View, options: &Options, width: u16, height: u16) -> (String, bool) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, table, view, options)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
        let text = cells.chunks(usize::from(width)).map(|row| row.concat() + "\n").collect();
        let is_coloured = buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        (text, is_coloured)
    }

    #[test]
    fn every_line_has_its_rate_and_its_state_in_words_at_every_width() {
        let (table, view) = (table(), View::default());
        for width in [60, 80, 132, 200] {
            for is_ascii in [false, true] {
                let (text, is_coloured) = drawn(&table, &view, &options(false, is_ascii), width, 24);
                for word in ["alpha", "1.00G", "ok", "beta", "refuses", "NOT WELL", "q quit"] {
                    // The heading and a state are cut where the terminal is narrow.
                    assert!(
                        width < 132 && ["NOT WELL", "refuses"].contains(&word) || text.contains(word),
                        "{word}\n{text}"
                    );
                }
                assert!(!is_coloured && text.is_ascii() == is_ascii, "{text}");
            }
        }
        assert!(drawn(&table, &view, &options(true, false), 132, 24).1, "a problem has a colour where there are any");
    }

    #[test]
    fn the_details_have_the_remedy_and_small_terminals_do_not_panic() {
        let table = table();
        let mut view = View::default();
        view.follow(&table);
        for code in [KeyCode::Down, KeyCode::Enter] {
            view.press(KeyEvent::new(code, KeyModifiers::NONE), &table);
        }
        let (text, _) = drawn(&table, &view, &options(false, false), 100, 30);
        for word in ["problem: the other end refuses", "fix: start it there", "-> 198.18.0.2:6080"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        for (width, height) in [(1, 1), (5, 3), (20, 6), (300, 2)] {
            drawn(&table, &view, &options(true, false), width, height);
        }
    }
}
