//! A page of the manual in the language of man(7).

/// A manual page under construction.
#[derive(Debug)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Begins a manual page with its name, its section and a one-line description.
    pub(super) fn new(name: &str, section: u8, about: &str) -> Page {
        let source = format!("segue {}", env!("CARGO_PKG_VERSION"));
        let date = env!("SEGUE_DATE");
        let mut page = Page { text: format!(".TH {} {section} {date} \"{source}\" segue\n", name.to_uppercase()) };
        page.section("NAME");
        page.line(&format!("{name} \\- {}", escaped(about)));
        page
    }

    /// Begins a section of the manual page.
    pub(super) fn section(&mut self, heading: &str) {
        self.text.push_str(&format!(".SH {}\n", quoted(heading)));
    }

    /// Begins a subsection of the manual page.
    pub(super) fn subsection(&mut self, heading: &str) {
        self.text.push_str(&format!(".SS {}\n", quoted(heading)));
    }

    /// Adds text: empty lines separate paragraphs, and lines with two leading spaces are kept unchanged.
    pub(super) fn text(&mut self, text: &str) {
        for paragraph in text.trim_matches('\n').split("\n\n") {
            let mut is_flowing = None;
            for line in paragraph.lines() {
                let flows = !line.starts_with("  ");
                match (is_flowing, flows) {
                    (Some(true), true) | (Some(false), false) => {}
                    (Some(false), true) => {
                        self.text.push_str(".fi\n");
                        self.paragraph();
                    }
                    (None, true) => self.paragraph(),
                    (_, false) => {
                        self.paragraph();
                        self.text.push_str(".nf\n");
                    }
                }
                is_flowing = Some(flows);
                self.line(&escaped(line));
            }
            if is_flowing == Some(false) {
                self.text.push_str(".fi\n");
            }
        }
    }

    /// Adds an entry of a list: a term, in bold, and its description.
    pub(super) fn entry(&mut self, term: &str, description: &str) {
        self.text.push_str(".TP\n");
        self.line(&format!("\\fB{}\\fR", escaped(term)));
        self.line(&escaped(description));
    }

    /// Adds an example command with its description.
    pub(super) fn example(&mut self, command: &str, description: &str) {
        self.text(description);
        self.paragraph();
        self.text.push_str(".RS 4\n.nf\n");
        for line in command.lines() {
            self.line(&format!("\\fB{}\\fR", escaped(line)));
        }
        self.text.push_str(".fi\n.RE\n");
    }

    /// Adds preformatted text, line by line.
    pub(super) fn listing(&mut self, text: &str) {
        self.paragraph();
        self.text.push_str(".nf\n");
        for line in text.lines() {
            self.line(&escaped(line));
        }
        self.text.push_str(".fi\n");
    }

    /// Adds references to other pages, `name(section)`, in their order.
    pub(super) fn references(&mut self, pages: &[String]) {
        self.section("SEE ALSO");
        let shown = pages.iter().map(|page| {
            let (name, rest) = page.split_once('(').unwrap_or((page, ""));
            format!(".BR {} ({rest}", escaped(name))
        });
        let lines: Vec<String> = shown.collect();
        self.text.push_str(&lines.join(" ,\n"));
        self.text.push('\n');
    }

    /// Returns the finished manual page in roff.
    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Begins a paragraph; a heading begins one by itself.
    fn paragraph(&mut self) {
        let last = self.text.lines().last().unwrap_or_default();
        if !last.starts_with(".SH") && !last.starts_with(".SS") {
            self.text.push_str(".PP\n");
        }
    }

    /// Adds one line of text, with a leading control character escaped.
    fn line(&mut self, line: &str) {
        if line.starts_with(['.', '\'']) {
            self.text.push_str("\\&");
        }
        self.text.push_str(line);
        self.text.push('\n');
    }
}

/// Returns text with roff's special characters escaped. A dash is the one that is typed.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text).replace('"', "\\(dq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_roff_is_escaped() {
        let mut page = Page::new("segue-x", 1, "a page");
        page.text(".dot\nand \\ backslash\n  kept --as is\nflows");
        let text = page.finish();
        assert!(
            text.contains("\n.PP\n\\&.dot\nand \\e backslash\n.PP\n.nf\n  kept \\-\\-as is\n.fi\n.PP\nflows\n"),
            "{text}"
        );
    }
}
