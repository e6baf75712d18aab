//! The guardian's side of the socket.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
};

use rustix::event::PollFlags;

use crate::wire::{Order, Report, take_line};

/// The connection to the command. No function here blocks.
pub(super) struct Control {
    pub(super) socket: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
    is_open: bool,
}

pub(super) enum Heard {
    Order(Order),
    /// The command has died or has closed the socket.
    End,
}

impl Control {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, received: Vec::new(), unsent: Vec::new(), is_open: true })
    }

    /// The next order that has arrived; `None` if there is none yet.
    pub(super) fn hear(&mut self) -> Option<Heard> {
        loop {
            while let Some(line) = take_line(&mut self.received) {
                // Both sides are the same binary, so every line can be parsed.
                if let Ok(order) = line.parse() {
                    return Some(Heard::Order(order));
                }
            }
            if !self.is_open {
                return None;
            }
            let mut buffer = [0; 1024];
            match self.socket.read(&mut buffer) {
                Ok(read) if read > 0 => self.received.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.is_open = false;
                    return Some(Heard::End);
                }
            }
        }
    }

    pub(super) fn say(&mut self, report: &Report) {
        self.unsent.extend_from_slice(format!("{report}\n").as_bytes());
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The command is gone, and nobody reads reports.
                Err(_) => self.unsent.clear(),
            }
        }
    }

    pub(super) fn awaits(&self) -> Option<PollFlags> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.is_open);
        events.set(PollFlags::OUT, !self.unsent.is_empty());
        Some(events).filter(|events| !events.is_empty())
    }
}
