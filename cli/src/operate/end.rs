//! [`End`]: how a command ended, as an exit code that a script can go by.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Fine,
    Error,
    Usage,
    NotAllowed,
    NoSuch,
    Refused,
    /// A check found something.
    Found,
    /// It is in progress: later.
    Later,
    /// A part of several was refused.
    Partly,
}

impl End {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Error => 1,
            Self::Usage => 2,
            Self::NotAllowed => 3,
            Self::NoSuch => 4,
            Self::Refused => 5,
            Self::Found => 6,
            Self::Later => 7,
            Self::Partly => 8,
        }
    }

    /// What a problem of the API comes to.
    pub(crate) fn of_problem(code: &str) -> Self {
        match code {
            "unauthenticated" | "not_allowed" | "cross_origin" => Self::NotAllowed,
            "no_such_request" | "no_such_job" | "no_such_phase" | "no_such_bulk" => Self::NoSuch,
            "moved_on" | "refused" | "unreadable" => Self::Refused,
            "in_use" => Self::Later,
            "malformed" | "invalid" => Self::Usage,
            _ => Self::Error,
        }
    }
}

/// Why a command was not done.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) end: End,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { end: End::Usage, text: text.into() }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self { end: End::Error, text }
    }
}
