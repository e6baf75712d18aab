//! Lines for a reader who may be slow, or not read at all: whoever writes never waits.

use std::{
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait for a slow reader; what comes beyond is dropped.
const WAITING: usize = 1_024;

/// How long the last lines may take to be read at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Writes lines from a thread of its own, which the first line starts. Clones write to the same place.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    queue: SyncSender<Vec<u8>>,
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
    /// Until there is a thread for it.
    writer: Option<Writer>,
    is_started: bool,
}

struct Writer {
    lines: Receiver<Vec<u8>>,
    output: Box<dyn Write + Send>,
}

impl Lines {
    pub(crate) fn to(output: Box<dyn Write + Send>) -> Self {
        let (queue, lines) = sync_channel(WAITING);
        let state = State { unwritten: 0, writer: Some(Writer { lines, output }), is_started: false };
        Self { queue, shared: Arc::new(Shared { state: Mutex::new(state), is_written: Condvar::new() }) }
    }

    pub(crate) fn send(&self, line: Vec<u8>) {
        let mut state = self.shared.lock();
        if self.queue.try_send(line).is_err() {
            return;
        }
        state.unwritten += 1;
        if !state.is_started {
            let shared = self.shared.clone();
            // Where there are too many threads, the next line may find fewer.
            state.is_started =
                thread::Builder::new().name("lines".to_owned()).spawn(move || shared.write()).is_ok();
        }
    }

    /// Waits a little for what is still to be written.
    pub(crate) fn finish(&self) {
        let state = self.shared.lock();
        let _ = self.shared.is_written.wait_timeout_while(state, LAST_WORDS, |state| state.unwritten > 0);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line is one write, so that lines of several processes in one file do not mix.
    fn write(&self) {
        let Some(Writer { lines, mut output }) = self.lock().writer.take() else { return };
        for line in lines {
            // Whoever reads has gone, at worst.
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

/// For logs, each of which comes as one write.
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
