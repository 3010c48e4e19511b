//! Which texts the driver changes before it sends them: it takes `:name` for a parameter, and sends `?` in its place. It
//! intends to do so only outside of texts, identifiers and comments. But it recognizes these differently from the server: it
//! sees no comment behind a `-` or a `/`, it takes a backslash for an escape whatever the server's settings are, and it loses
//! the begin or the end of what stands there. So what is inside of a text for the server may be outside for it.

/// Where the driver believes to be.
#[derive(Clone, Copy)]
enum Place {
    Outside,
    /// Behind a `:`.
    Colon,
    /// In a text between these quotes, behind this byte.
    Text(u8, u8),
    Identifier,
    Dash,
    TwoDashes,
    /// In a comment that ends with its line.
    Line,
    Slash,
    SlashStar,
    Comment,
    /// Behind a `*` in a comment.
    Star,
}

/// Whether the driver takes a part of the text for a parameter of its own. The rule is that of
/// `mysql_common::named_params::ParsedNamedParams::parse`.
pub(super) fn may_be_rewritten(sql: &str) -> bool {
    use Place::*;
    let mut place = Outside;
    for byte in sql.bytes() {
        place = match (place, byte) {
            (Colon, b'a'..=b'z' | b'_') => return true,
            (Outside | Colon, b':') => Colon,
            (Outside | Colon, b'\'' | b'"') => Text(byte, byte),
            (Outside, b'`') => Identifier,
            (Outside, b'-') => Dash,
            (Outside, b'/') => Slash,
            (Outside, b'#') => Line,
            (Text(quote, last), _) if byte == quote && last != b'\\' => Outside,
            (Text(quote, _), _) => Text(quote, byte),
            (Dash, b'-') => TwoDashes,
            (TwoDashes, _) if byte.is_ascii_whitespace() && byte != b'\n' => Line,
            (Slash, b'*') => SlashStar,
            (SlashStar, b'!' | b'+') => Outside,
            (Comment, b'*') => Star,
            (SlashStar | Comment, _) => Comment,
            (Star, b'/') => Outside,
            (Star, _) => Comment,
            (Identifier, b'`') | (Line, b'\n') => Outside,
            (Identifier | Line, _) => place,
            (Outside | Colon | Dash | TwoDashes | Slash, _) => Outside,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g4_a_text_that_the_driver_rewrites_is_known() {
        for sql in [
            "SELECT :a",
            r"INSERT INTO t VALUES ('\\', 'at :noon')",
            "SELECT 1-':a'",
            "SELECT 1/\":a\"",
            // Under NO_BACKSLASH_ESCAPES.
            r"INSERT INTO t VALUES ('C:\', 'x :name y')",
            "UPDATE t SET a = a -/* don't */1, b = ':name'",
            "SELECT a/`b'c`, ':name' FROM t",
            "UPDATE t SET a = 7/-- don't\n 2, b = ':name'",
            "SELECT 1--':b'",
            "SELECT a ::b",
            "SELECT 1:/*'*/, ':b'",
            "/*! SELECT :a */",
        ] {
            assert!(may_be_rewritten(sql), "{sql}");
        }
        for sql in [
            "INSERT INTO t VALUES ('at :noon')",
            r"INSERT INTO t VALUES ('\\', 'at 12:30')",
            "SELECT a-'1' FROM t WHERE b = ?",
            r"INSERT INTO t VALUES ('it\'s :noon')",
            "SELECT 'it''s', ':noon', \":noon\", `:noon`",
            "SELECT @a := 1, @b:= 2 # :noon\n, 3 -- :noon\n, /* ' :noon */ 4",
            "",
        ] {
            assert!(!may_be_rewritten(sql), "{sql}");
        }
    }
}
