//! Texts for people, in characters that every encoding has.
//!
//! The encoding of a database may lack some characters. Then they are escaped (`\u{65e5}`), because a text that is only
//! for people must not cost a lease (invariant I12).

use crate::{
    session::{Label, Reason, Requester, RunPhase},
    store::{Acquire, BreakLease, Renew, StopRun, record::RecordedReason},
};

/// An item that contains texts for people.
pub(super) trait Worded: Clone {
    /// The same item with these texts in ASCII.
    fn in_ascii(&self) -> Self;
}

impl Worded for Acquire {
    fn in_ascii(&self) -> Self {
        let label = Label::new(ascii(self.label.as_str(), 255)).unwrap_or_else(|_| self.label.clone());
        Self { label, phase: phase(&self.phase), ..self.clone() }
    }
}

impl Worded for Renew {
    fn in_ascii(&self) -> Self {
        Self { phase: self.phase.as_ref().map(phase), ..self.clone() }
    }
}

impl Worded for StopRun {
    fn in_ascii(&self) -> Self {
        let by = self.by.as_ref().and_then(|by| Requester::new(ascii(by.as_str(), 255)).ok());
        let reason = self.reason.as_ref().and_then(|reason| Reason::new(ascii(reason.as_str(), 1_000)).ok());
        Self { by, reason, ..self.clone() }
    }
}

impl Worded for BreakLease {
    fn in_ascii(&self) -> Self {
        let by = self.by.as_ref().and_then(|by| Requester::new(ascii(by.as_str(), 255)).ok());
        let reason = self.reason.as_ref().and_then(|reason| Reason::new(ascii(reason.as_str(), 1_000)).ok());
        Self { by, reason, ..self.clone() }
    }
}

impl Worded for RecordedReason {
    fn in_ascii(&self) -> Self {
        let text = |text: &Option<String>, limit| text.as_ref().map(|text| ascii(text, limit));
        Self { word: self.word, by: text(&self.by, 255), why: text(&self.why, 1_000) }
    }
}

fn phase(phase: &RunPhase) -> RunPhase {
    RunPhase::new(ascii(phase.as_str(), 64)).unwrap_or_default()
}

/// The text in ASCII, at most `limit` bytes long. If it is longer, the end is cut off and three dots stand for it.
fn ascii(text: &str, limit: usize) -> String {
    let mut ascii = String::new();
    let mut fits = 0;
    for char in text.chars() {
        match char.is_ascii() {
            true => ascii.push(char),
            false => ascii.extend(char.escape_unicode()),
        }
        if ascii.len() <= limit - CUT.len() {
            fits = ascii.len();
        }
    }
    if ascii.len() > limit {
        ascii.truncate(fits);
        ascii.push_str(CUT);
    }
    ascii
}

const CUT: &str = "...";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_text_is_ascii_and_no_longer_than_it_may_be() {
        assert_eq!(ascii("Müller 日", 64), r"M\u{fc}ller \u{65e5}");
        assert_eq!(ascii("", 64), "");
        assert_eq!(ascii(&"x".repeat(64), 64), "x".repeat(64));
        assert_eq!(ascii(&"日".repeat(8), 64), r"\u{65e5}".repeat(8));
        assert_eq!(ascii(&"日".repeat(21), 64), r"\u{65e5}".repeat(7) + "...");
        for limit in 64..80 {
            let cut = ascii(&format!("{}🦀", "é".repeat(40)), limit);
            assert!(cut.is_ascii() && cut.len() <= limit && cut.ends_with("}..."), "{cut}");
        }
    }
}
