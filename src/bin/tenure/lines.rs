//! Writes lines without blocking the caller, even if the reader is slow or does not read at all.

use std::{
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// How many lines may wait for a slow reader. Further lines are dropped.
const WAITING: usize = 1_024;

/// How long to wait at the end for the last lines to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Writes lines from a thread of its own, which the first line starts. Clones write to the same place.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    queue: Sender<Vec<u8>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    is_written: Condvar,
}

#[derive(Debug)]
struct State {
    unwritten: usize,
    /// `None` once the thread has taken it.
    writer: Option<Writer>,
    is_started: bool,
}

struct Writer {
    lines: Receiver<Vec<u8>>,
    output: Box<dyn Write + Send>,
}

impl Lines {
    pub(crate) fn to(output: Box<dyn Write + Send>) -> Self {
        let (queue, lines) = channel();
        let state = State { unwritten: 0, writer: Some(Writer { lines, output }), is_started: false };
        Self { queue, shared: Arc::new(Shared { state: Mutex::new(state), is_written: Condvar::new() }) }
    }

    pub(crate) fn send(&self, line: Vec<u8>) {
        let mut state = self.shared.lock();
        if state.unwritten == WAITING || self.queue.send(line).is_err() {
            return;
        }
        state.unwritten += 1;
        self.start_thread(&mut state);
    }

    /// If the process has too many threads now, the next line tries again.
    fn start_thread(&self, state: &mut State) {
        if !state.is_started {
            let shared = self.shared.clone();
            state.is_started =
                thread::Builder::new().name("lines".to_owned()).spawn(move || shared.write()).is_ok();
        }
    }

    /// Waits until all lines are written, though no longer than [`LAST_WORDS`].
    pub(crate) fn finish(&self) {
        let mut state = self.shared.lock();
        if state.unwritten > 0 {
            self.start_thread(&mut state);
        }
        let _ = self.shared.is_written.wait_timeout_while(state, LAST_WORDS, |state| state.unwritten > 0);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes each line by one call, so that lines of several processes in one file do not mix.
    fn write(&self) {
        let Some(Writer { lines, mut output }) = self.lock().writer.take() else { return };
        for line in lines {
            // An error means that nobody reads any more.
            let _ = output.write_all(&line).and_then(|()| output.flush());
            self.lock().unwritten -= 1;
            self.is_written.notify_all();
        }
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// For log records, each of which is one write.
impl Write for &Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}
