//! What the engine says when it passes a crash point. Without the feature `fault-injection` each of
//! these expands to nothing: no string, no branch, no await.

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
        // Named and never called, so that nobody has to tell the compiler why it is there.
        let _ = || $phase;
    };
}

/// `committing!(phase, BeforeCommit to AfterCommit, commit)`: a commit, which may be made to fail, or
/// to lose its answer.
#[cfg(feature = "fault-injection")]
macro_rules! committing {
    ($phase:expr, $before:ident to $after:ident, $commit:expr) => {
        $crate::fault::committing(
            $phase,
            ($crate::fault::Place::$before, $crate::fault::Place::$after),
            async { $commit },
        )
        .await
    };
}

#[cfg(not(feature = "fault-injection"))]
macro_rules! committing {
    ($phase:expr, $before:ident to $after:ident, $commit:expr) => {{
        let _ = || $phase;
        $commit
    }};
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

/// `mutated!(NoFence)`: whether the kit breaks this guarantee at the moment, to see itself find it.
#[cfg(feature = "fault-injection")]
macro_rules! mutated {
    ($mutant:ident) => {
        $crate::fault::mutated($crate::fault::Mutant::$mutant)
    };
}
