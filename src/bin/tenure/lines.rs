//! Writes lines without blocking the caller, even if the reader is slow or does not read at all.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use tracing_subscriber::fmt::MakeWriter;

/// How many lines may wait for a slow reader. Further lines are dropped.
const WAITING: usize = 1_024;

/// How long to wait at the end for the last lines to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Writes lines from a thread of its own. Clones write to the same place.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    queue: SyncSender<Vec<u8>>,
    unwritten: Arc<AtomicUsize>,
}

impl Lines {
    pub(crate) fn to(output: Box<dyn Write + Send>) -> io::Result<Self> {
        let (queue, lines) = sync_channel(WAITING);
        let unwritten = Arc::new(AtomicUsize::new(0));
        let counter = unwritten.clone();
        thread::Builder::new().name("lines".to_owned()).spawn(move || write(&lines, output, &counter))?;
        Ok(Self { queue, unwritten })
    }

    pub(crate) fn send(&self, line: Vec<u8>) {
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        if self.queue.try_send(line).is_err() {
            self.unwritten.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines are written, though no longer than [`LAST_WORDS`].
    pub(crate) fn finish(&self) {
        let until = Instant::now() + LAST_WORDS;
        while self.unwritten.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Writes each line by one call, so that lines of several processes in one file do not mix.
fn write(lines: &Receiver<Vec<u8>>, mut output: Box<dyn Write + Send>, unwritten: &AtomicUsize) {
    for line in lines {
        // An error means that nobody reads any more.
        let _ = output.write_all(&line).and_then(|()| output.flush());
        unwritten.fetch_sub(1, Ordering::Relaxed);
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
