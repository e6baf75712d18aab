//! Makes text from strangers safe to show to people: in a log line, on a terminal, in a table.

use std::{borrow::Cow, path::Path};

/// Escapes everything in a text that is hidden, moves the cursor, or changes the reading direction: control characters,
/// bidirectional marks, blanks other than the ordinary space, and characters without width.
///
/// The result is for people, not for parsing: a text that already contains such an escape looks the same.
///
/// ```
/// assert_eq!(tenure::text::printable("bell\u{7}, caf\u{e9}, right\u{202e}left"), r"bell\u{7}, café, right\u{202e}left");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_seen) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_seen(char) { shown.push(char) } else { shown.extend(escape(char)) }
    }
    Cow::Owned(shown)
}

/// Shows a name so that two different names look different. Like [`printable`], and in quotes if the name is empty or
/// has a space, a slash, a quote, a backslash, or anything that is escaped.
///
/// ```
/// use tenure::text::printable_name;
/// assert_eq!(printable_name("chat-9"), "chat-9");
/// assert_eq!(printable_name("sb "), "\"sb \"");
/// assert_eq!(printable_name("b/c"), "\"b/c\"");
/// ```
pub fn printable_name(name: &str) -> Cow<'_, str> {
    let is_plain = |char: char| is_seen(char) && !matches!(char, ' ' | '/' | '"' | '\'' | '`' | '\\');
    if !name.is_empty() && name.chars().all(is_plain) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::from("\"");
    for char in name.chars() {
        match char {
            '"' | '\\' => shown.extend(['\\', char]),
            char if is_seen(char) => shown.push(char),
            char => shown.extend(escape(char)),
        }
    }
    shown.push('"');
    Cow::Owned(shown)
}

/// A path as [`printable`] text. Bytes that are not UTF-8 are shown as U+FFFD.
pub fn printable_path(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// The beginning of a text as [`printable`], in at most this many bytes, with an ellipsis for what is left out.
pub(crate) fn printable_start(text: &str, max_bytes: usize) -> String {
    let start = &text[..text.floor_char_boundary(max_bytes)];
    let mut shown = printable(start).into_owned();
    if start.len() < text.len() || shown.len() > max_bytes {
        shown.truncate(shown.floor_char_boundary(max_bytes - ELLIPSIS.len_utf8()));
        shown.push(ELLIPSIS);
    }
    shown
}

const ELLIPSIS: char = '…';

/// Escapes one character, as `\n` or `\u{202e}`.
fn escape(char: char) -> impl Iterator<Item = char> {
    char.escape_default()
}

/// Whether a character is visible by itself, or changes the look of the character before it.
fn is_seen(char: char) -> bool {
    match char {
        ' '..='~' => true,
        // Joiners, fillers and selectors are invisible, although their Unicode category says otherwise.
        '\u{034f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' => false,
        '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}' => false,
        char => is_printable(char),
    }
}

/// Whether the standard library calls a character printable: it is no control or format character, no blank, and has a
/// meaning. The library shows this only by what `escape_debug` escapes. `escape_debug` does not escape a combining
/// character that follows another character, hence the `x` before it.
fn is_printable(char: char) -> bool {
    let mut buffer = [b'x'; 5];
    let length = 1 + char.encode_utf8(&mut buffer[1..]).len();
    let pair = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
    pair.escape_debug().eq(pair.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bell, a bidirectional override, isolates and marks, zero-width ones, a soft hyphen, blanks of other kinds, a
    /// line separator, a tag, a variation selector, a filler, one for private use, and one that is no character.
    const UNSEEN: &str = "\u{7}\u{9b}\u{202e}\u{2066}\u{200f}\u{61c}\u{200b}\u{200d}\u{feff}\u{2060}\u{ad}\u{a0}\u{3000}\
                          \u{2028}\u{e0041}\u{fe0f}\u{3164}\u{e000}\u{fffe}\n\t\r\u{85}";

    #[test]
    fn what_cannot_be_seen_is_escaped_alone() {
        for char in UNSEEN.chars() {
            let text = format!("a{char}b");
            let shown = printable(&text);
            assert!(shown.len() > text.len() && shown.chars().all(is_seen), "{shown:?}");
            assert_eq!(printable_name(&text), format!("\"{shown}\""));
        }
        for text in
            ["", "plain", "a b", "it's \"so\" \\ /", "café", "cafe\u{301}", "हिन्दी", "日本 🦀", "שלום"]
        {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(printable_start("12345678", 8), "12345678");
        assert_eq!(printable_start("123456789", 8), "12345…");
        assert_eq!(printable_start("1234éé", 7), "1234…");
        assert_eq!(printable_start("1\u{202e}2", 8), "1\\u{2…");
    }

    #[test]
    fn names_that_differ_look_different() {
        let names = [
            "sb",
            "sb ",
            " sb",
            "s b",
            "s  b",
            "s/b",
            "sb\u{a0}",
            "sb\u{200b}",
            "sb\\u{200b}",
            "\"sb \"",
            "sb\n",
            "sb\\n",
            "",
            "\u{202e}sb",
            "s\u{ad}b",
        ];
        for (n, one) in names.iter().enumerate() {
            for other in &names[n + 1..] {
                assert_ne!(printable_name(one), printable_name(other));
            }
        }
    }
}
