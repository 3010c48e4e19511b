//! Reads SQL as the server's lexer does, as far as it takes to tell statements from each other and
//! what each begins with. It knows no grammar.
//!
//! A first look at a text, not the proof: a statement that ends the engine's transaction is refused
//! before it is sent, and the engine's last write checks that its transaction is still the one that it
//! began. Where dialects or a server's settings differ, the reading that finds more wins.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod control;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) use self::control::controls_transaction;
#[cfg(feature = "sqlite")]
pub(super) use self::control::{changes_connection, holds_several};

/// Whose lexer reads the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Comments nest, `--` ends at `\n` or `\r`, `E''` strings have escapes, dollars quote.
    #[cfg(feature = "postgres")]
    Postgres,
    /// Comments do not nest, `--` ends at `\n`, backticks and brackets quote names.
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// `#` and `-- ` begin comments, and the server executes what is in `/*! */` and `/*M! */`. Read for the first
    /// words of a text only: what a string is depends on the session's modes.
    #[cfg(feature = "mysql")]
    Mysql,
}

/// A piece of an SQL text. Space and comments in front of it are part of no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'s> {
    /// A keyword, a name without quotes, or a number.
    Word(&'s str),
    /// A string or a quoted name, with its quotes.
    Quoted(&'s str),
    /// `$1`: a bind that the text numbers by itself.
    Bind(&'s str),
    /// Any other sign.
    Sign(char),
    /// A comment. Of interest where a text is put behind another.
    Comment,
    /// A string, a quoted name or a comment that does not end.
    Unterminated,
}

/// The tokens of a text.
#[derive(Clone, Debug)]
pub(super) struct Tokens<'s> {
    text: &'s str,
    dialect: Dialect,
    /// In each string that has no other mark.
    backslash: Backslash,
}

/// What a backslash is in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backslash {
    /// A letter like others.
    IsALetter,
    /// It escapes, as in `E''`, and in each string with `standard_conforming_strings = off`.
    Escapes,
}

/// The words that a text begins with: no word comes behind any other sign.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(super) fn first_words(sql: &str, dialect: Dialect) -> impl Iterator<Item = &str> {
    Tokens::of(sql, dialect)
        .filter(|token| *token != Token::Comment)
        .skip_while(move |token| *token == Token::Sign(dialect.leading_sign()))
        .map_while(|token| match token {
            Token::Word(word) => Some(word),
            _ => None,
        })
}

impl<'s> Tokens<'s> {
    pub(super) fn of(text: &'s str, dialect: Dialect) -> Self {
        Self { text, dialect, backslash: Backslash::IsALetter }
    }

    /// Cuts `length` bytes off the text.
    fn take(&mut self, length: usize) -> &'s str {
        let (taken, rest) = self.text.split_at(length);
        self.text = rest;
        taken
    }

    /// Takes a token that ends `length` bytes on, if it ends.
    fn quoted(&mut self, length: Option<usize>) -> Token<'s> {
        match length {
            Some(length) => Token::Quoted(self.take(length)),
            None => self.unterminated(),
        }
    }

    fn unterminated(&mut self) -> Token<'s> {
        self.text = "";
        Token::Unterminated
    }

    fn comment(&mut self) -> Option<Token<'s>> {
        let length = if self.dialect.begins_line_comment(self.text) {
            let ends = |c: char| c == '\n' || (c == '\r' && self.dialect.ends_lines_by_return());
            self.text.find(ends).unwrap_or(self.text.len())
        } else if self.text.starts_with("/*") && !self.dialect.executes_comment(self.text) {
            match block_comment(self.text, self.dialect.nests_comments()) {
                Some(length) => length,
                None => return Some(self.unterminated()),
            }
        } else {
            return None;
        };
        self.take(length);
        Some(Token::Comment)
    }

    fn word(&mut self) -> Token<'s> {
        let length = self.text.find(|c| !continues_word(c)).unwrap_or(self.text.len());
        let is_escape = matches!(&self.text[..length], "E" | "e")
            && self.dialect.has_escape_strings()
            && self.text[length..].starts_with('\'');
        if is_escape {
            let end =
                closing(&self.text[length..], '\'', Backslash::Escapes).map(|end| length + end);
            return self.quoted(end);
        }
        Token::Word(self.take(length))
    }

    /// What a dollar begins: a bind, a quote, or nothing.
    fn dollar(&mut self) -> Token<'s> {
        let behind = &self.text[1..];
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            return Token::Bind(self.take(1 + digits));
        }
        let tag = behind.find(|c: char| c == '$' || !continues_word(c)).unwrap_or(behind.len());
        if self.dialect.has_dollar_quotes() && behind[tag..].starts_with('$') {
            let delimiter = &self.text[..tag + 2];
            let end = self.text[tag + 2..].find(delimiter).map(|end| end + 2 * delimiter.len());
            return self.quoted(end);
        }
        self.take(1);
        Token::Sign('$')
    }
}

impl<'s> Iterator for Tokens<'s> {
    type Item = Token<'s>;

    fn next(&mut self) -> Option<Token<'s>> {
        self.text = self.text.trim_start_matches(is_space);
        let first = self.text.chars().next()?;
        if let Some(comment) = self.comment() {
            return Some(comment);
        }
        Some(match first {
            '\'' => {
                let end = closing(self.text, '\'', self.backslash);
                self.quoted(end)
            }
            '"' => self.quoted(closing(self.text, '"', Backslash::IsALetter)),
            '`' if self.dialect.quotes_names_by_backtick() => {
                self.quoted(closing(self.text, '`', Backslash::IsALetter))
            }
            '[' if self.dialect.quotes_names_by_backtick() => {
                let end = self.text.find(']').map(|end| end + 1);
                self.quoted(end)
            }
            '$' => self.dollar(),
            _ if continues_word(first) => self.word(),
            sign => {
                self.take(sign.len_utf8());
                Token::Sign(sign)
            }
        })
    }
}

impl Dialect {
    fn is_postgres(self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres => true,
            #[cfg(feature = "sqlite")]
            Self::Sqlite => false,
            #[cfg(feature = "mysql")]
            Self::Mysql => false,
        }
    }

    pub(super) fn is_mysql(self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres => false,
            #[cfg(feature = "sqlite")]
            Self::Sqlite => false,
            #[cfg(feature = "mysql")]
            Self::Mysql => true,
        }
    }

    /// What may stand before the first word, any number of times. SQLite passes over empty statements; on MySQL, which does
    /// not, a query may stand in brackets.
    #[cfg(any(feature = "sqlite", feature = "mysql"))]
    fn leading_sign(self) -> char {
        if self.is_mysql() { '(' } else { ';' }
    }

    fn begins_line_comment(self, text: &str) -> bool {
        match self.is_mysql() {
            true => ["-- ", "--\t", "#"].iter().any(|begin| text.starts_with(begin)),
            false => text.starts_with("--"),
        }
    }

    /// Whether what looks like a comment is a part of the statement.
    fn executes_comment(self, text: &str) -> bool {
        self.is_mysql() && (text.starts_with("/*!") || text.starts_with("/*M!"))
    }

    fn nests_comments(self) -> bool {
        self.is_postgres()
    }

    fn ends_lines_by_return(self) -> bool {
        self.is_postgres()
    }

    fn has_escape_strings(self) -> bool {
        self.is_postgres()
    }

    fn has_dollar_quotes(self) -> bool {
        self.is_postgres()
    }

    fn quotes_names_by_backtick(self) -> bool {
        !self.is_postgres()
    }
}

/// What any server, or a terminal that shows the text, takes for space. A byte order mark is space
/// to SQLite; a server that does not take it for space refuses the text.
fn is_space(c: char) -> bool {
    c.is_whitespace() || c.is_control() || c == '\u{feff}' || c == '\u{200b}'
}

fn continues_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || (!c.is_ascii() && !is_space(c))
}

/// The length of the quoted text that `text` begins with. A doubled quote stands for itself.
fn closing(text: &str, quote: char, backslash: Backslash) -> Option<usize> {
    let mut letters = text.char_indices().skip(1).peekable();
    while let Some((at, letter)) = letters.next() {
        if backslash == Backslash::Escapes && letter == '\\' {
            letters.next();
        } else if letter == quote && letters.next_if(|(_, next)| *next == quote).is_none() {
            return Some(at + quote.len_utf8());
        }
    }
    None
}

/// The length of the comment that `text` begins with.
fn block_comment(text: &str, nests: bool) -> Option<usize> {
    let (mut depth, mut at) = (1_u32, 2);
    while let Some(found) = text[at..].find(['*', '/']) {
        at += found;
        let rest = &text[at..];
        if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else if nests && rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else {
            at += 1;
        }
    }
    None
}

#[cfg(all(test, feature = "postgres", feature = "sqlite"))]
mod tests;
