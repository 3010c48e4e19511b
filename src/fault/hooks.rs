//! What the engine says when it passes a crash point. Without the feature `fault-injection` each of
//! these expands to nothing: no string, no branch, no await. So no `#[cfg]` stands around one
//! (`tests/readme/hooks.rs`).

/// `reach!(phase, BeforeCall)`: the engine is at this point of this phase.
#[cfg(feature = "fault-injection")]
macro_rules! reach {
    ($phase:expr, $place:ident) => {
        $crate::fault::reach($phase, $crate::fault::Place::$place).await
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! reach {
    ($phase:expr, $place:ident) => {
        // Named and never called, so that the compiler does not report it as unused.
        let _ = || $phase;
    };
}

/// `committing!(phase, kind, commit)`: a commit between the two points of its kind. It may be made to
/// fail, or to lose its answer.
#[cfg(feature = "fault-injection")]
macro_rules! committing {
    ($phase:expr, $kind:expr, $commit:expr) => {
        $crate::fault::committing($phase, $kind.points(), async { $commit }).await
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! committing {
    ($phase:expr, $kind:expr, $commit:expr) => {{
        let _ = || ($phase, $kind);
        $commit
    }};
}

/// `reading!("look", read)`: a read of the store, which an explorer may make fail.
#[cfg(feature = "fault-injection")]
macro_rules! reading {
    ($what:literal, $read:expr) => {
        $crate::fault::reading($what, Box::pin($read)).await
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! reading {
    ($what:literal, $read:expr) => {
        $read.await
    };
}

/// `asked!(phase, BeforeCall, CallFails)`: whether an explorer asks for this at this point of this phase. Never,
/// without the feature.
#[cfg(feature = "fault-injection")]
macro_rules! asked {
    ($phase:expr, $place:ident, $mode:ident) => {
        $crate::fault::at($phase, $crate::fault::Place::$place).await
            == Some($crate::fault::Mode::$mode)
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! asked {
    ($phase:expr, $place:ident, $mode:ident) => {{
        let _ = || $phase;
        false
    }};
}

/// `faults! { statements }`: what the engine does for an explorer alone, or an item that it has for one. A `let` in it
/// is seen behind it.
#[cfg(feature = "fault-injection")]
macro_rules! faults {
    ($($statements:tt)*) => { $($statements)* };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! faults {
    ($($statements:tt)*) => {};
}

/// `simulated! { statements }`: the same for a simulation, with the feature of that name.
#[cfg(feature = "simulation")]
macro_rules! simulated {
    ($($statements:tt)*) => { $($statements)* };
}

#[cfg(not(feature = "simulation"))]
macro_rules! simulated {
    ($($statements:tt)*) => {};
}

/// `passed!("decision", value)`: the value, of which a simulation counts the variant.
#[cfg(feature = "simulation")]
macro_rules! passed {
    ($what:literal, $value:expr) => {{
        let value = $value;
        $crate::simulation::pass_variant($what, &value);
        value
    }};
}

#[cfg(not(feature = "simulation"))]
macro_rules! passed {
    ($what:literal, $value:expr) => {
        $value
    };
}

/// `carried!(future)`: a task that is spawned takes the plan of its caller along.
#[cfg(feature = "fault-injection")]
macro_rules! carried {
    ($future:expr) => {
        $crate::fault::carried($future)
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! carried {
    ($future:expr) => {
        $future
    };
}

/// `inside!(phase, future)`: the body of a phase, which may have points of its own.
#[cfg(feature = "fault-injection")]
macro_rules! inside {
    ($phase:expr, $body:expr) => {
        $crate::fault::inside($phase, $body)
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! inside {
    ($phase:expr, $body:expr) => {
        $body
    };
}

/// A crash point of your own, in the body of a phase: `crash_point!("after_pdf");`.
///
/// An explorer then crashes the phase there too, and names it `receipt_made/after_pdf`. Use it where
/// the phase does something that no commit undoes, a file for example. It works in any async code that
/// a phase or a reconcile function awaits on its own task; anywhere else it does nothing. Its name is
/// of `a-z`, `0-9` and `_`.
///
/// Without the feature `fault-injection` it is nothing at all: no string, no branch, no await.
///
/// ```
/// # async fn write_pdf() {}
/// # async fn example() {
/// write_pdf().await;
/// atomic_phases::crash_point!("after_pdf");
/// # }
/// ```
#[cfg(feature = "fault-injection")]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {{
        const _: () = $crate::fault::__check_name($name);
        $crate::fault::__crash_point($name).await
    }};
}

/// A crash point of your own, in the body of a phase: `crash_point!("after_pdf");`. Without the
/// feature `fault-injection`, as here, it is nothing at all: no string, no branch, no await.
#[cfg(not(feature = "fault-injection"))]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        ()
    };
}

/// Nothing at all: it may even stand where nothing can be awaited.
#[cfg(not(feature = "fault-injection"))]
const _: () = crash_point!("nowhere");

/// `noted!(error)`: the database refused a statement of a phase. Its text may hold values, so only an
/// explorer keeps it, for the developer who looks for the cause of a failed run.
#[cfg(feature = "fault-injection")]
macro_rules! noted {
    ($error:expr) => {
        $crate::fault::note($error)
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! noted {
    ($error:expr) => {
        let _ = $error;
    };
}

/// `mutated!(NoFence)`: whether the kit breaks this guarantee at the moment, to see itself find it.
/// Never, without the feature.
#[cfg(feature = "fault-injection")]
macro_rules! mutated {
    ($mutant:ident) => {
        $crate::fault::mutated($crate::fault::Mutant::$mutant)
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! mutated {
    ($mutant:ident) => {
        false
    };
}
