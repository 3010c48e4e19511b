//! What the commands print, under the names of the standard library's macros. Theirs panic when the reader has closed the
//! pipe: `| head` would break an act on several requests off half way.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

macro_rules! print {
    ($($text:tt)*) => { $crate::say::out(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::say::out(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::say::beside(format_args!("{}\n", format_args!($($text)*))) };
}

static IS_LOST: AtomicBool = AtomicBool::new(false);

/// On the standard output. Who reads no further has read enough.
pub(crate) fn out(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let written = out.write_fmt(text).and_then(|()| out.flush());
    if written.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe) {
        IS_LOST.store(true, Ordering::Relaxed);
    }
}

/// On the standard error.
pub(crate) fn beside(text: Arguments<'_>) {
    // There is no other place to say so.
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Whether something could not be printed: a disk is full, say. Says so.
pub(crate) fn is_lost() -> bool {
    let is_lost = IS_LOST.load(Ordering::Relaxed);
    if is_lost {
        eprintln!("error: the output could not be written");
    }
    is_lost
}
