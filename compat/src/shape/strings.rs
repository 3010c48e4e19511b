//! [`StrFormat`]: the forms of strings that probing tells apart.

const OWN: &str = "own";

/// Which strings a type takes, as far as probing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrFormat {
    /// Any.
    Any,
    /// Any but the empty one.
    NotEmpty,
    /// A UUID.
    Uuid,
    /// RFC 3339.
    DateTime,
    /// Date and time without an offset.
    LocalDateTime,
    /// `2000-01-01`.
    Date,
    /// `00:00:00`.
    Time,
    /// A number in a string.
    Number,
    /// A URL.
    Url,
    /// An address of IP.
    Ip,
    /// A mail address.
    Mail,
    /// ISO 4217.
    Currency,
    /// By a rule of the type's own, which no known form keeps, or several do.
    Own,
}

impl StrFormat {
    /// All that are known, with a string of each, the widest first.
    pub const ALL: [(Self, &'static str, &'static str); 12] = [
        (Self::Any, "", ""),
        (Self::NotEmpty, "not-empty", "a"),
        (Self::Uuid, "uuid", "00000000-0000-4000-8000-000000000000"),
        (Self::DateTime, "date-time", "2000-01-01T00:00:00Z"),
        (Self::LocalDateTime, "local-date-time", "2000-01-01T00:00:00"),
        (Self::Date, "date", "2000-01-01"),
        (Self::Time, "time", "00:00:00"),
        (Self::Number, "number", "1"),
        (Self::Url, "url", "https://a.example/"),
        (Self::Ip, "ip", "127.0.0.1"),
        (Self::Mail, "mail", "a@a.example"),
        (Self::Currency, "currency", "USD"),
    ];

    /// A string of this form.
    #[must_use]
    pub fn example(self) -> &'static str {
        Self::ALL.iter().find(|(format, ..)| *format == self).map_or("", |(_, _, example)| example)
    }

    pub(super) fn name(self) -> &'static str {
        let known = Self::ALL.iter().find(|(format, ..)| *format == self);
        known.map_or(OWN, |(_, name, _)| name)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        let known = Self::ALL.iter().find(|(_, known, _)| *known == name);
        known.map(|(format, ..)| *format).or((name == OWN).then_some(Self::Own))
    }

    /// Whether `text` has this form, by its pattern of digits and marks: enough to tell the forms apart.
    pub(crate) fn recognises(self, text: &str) -> bool {
        match self {
            // Whether it keeps a rule that is not known is not known.
            Self::Any | Self::Own => true,
            Self::NotEmpty => !text.is_empty(),
            Self::Uuid => {
                text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
            }
            Self::DateTime => is_like(text, "0000-00-00T00:00:00") && has_offset(text),
            Self::LocalDateTime => is_like(text, "0000-00-00T00:00:00") && !has_offset(text),
            Self::Date => text.len() == 10 && is_like(text, "0000-00-00"),
            Self::Time => is_like(text, "00:00:00"),
            Self::Number => text.parse::<f64>().is_ok(),
            Self::Url => text.contains("://"),
            Self::Ip => text.parse::<std::net::IpAddr>().is_ok(),
            Self::Mail => text.contains('@'),
            Self::Currency => text.len() == 3 && text.chars().all(|c| c.is_ascii_uppercase()),
        }
    }
}

/// Whether `text` begins like `pattern`, in which `0` is any digit.
fn is_like(text: &str, pattern: &str) -> bool {
    text.len() >= pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            mark => byte.eq_ignore_ascii_case(&mark),
        })
}

fn has_offset(text: &str) -> bool {
    let time = text.get(19..).unwrap_or_default();
    time.ends_with(['Z', 'z']) || time.contains(['+', '-'])
}
