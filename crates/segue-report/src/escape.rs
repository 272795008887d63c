//! Escaping of text in HTML.

/// Returns `text` with the characters replaced that have a meaning in HTML, in text as well as in attributes.
pub(crate) fn escaped(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => made.push_str("&amp;"),
            '<' => made.push_str("&lt;"),
            '>' => made.push_str("&gt;"),
            '"' => made.push_str("&quot;"),
            '\'' => made.push_str("&#39;"),
            c if c.is_control() => made.push(' '),
            c => made.push(c),
        }
    }
    made
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(super::escaped("<a href='x'>&\n\""), "&lt;a href=&#39;x&#39;&gt;&amp; &quot;");
    }
}
