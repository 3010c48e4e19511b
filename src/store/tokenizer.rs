//! Reads SQL as the server's lexer does, as far as it takes to tell statements from each other and
//! what each begins with. It knows no grammar.
//!
//! A first look at a text, not the proof: a statement that ends the engine's transaction is refused
//! before it is sent, and the engine's last write checks that its transaction is still the one that it
//! began. Where the two dialects or a server's settings differ, the reading that finds more wins.

/// Whose lexer reads the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Comments nest, `--` ends at `\n` or `\r`, `E''` strings have escapes, dollars quote.
    #[cfg(feature = "postgres")]
    Postgres,
    /// Comments do not nest, `--` ends at `\n`, backticks and brackets quote names.
    #[cfg(feature = "sqlite")]
    Sqlite,
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

/// Whether a text would end, or begin, the transaction that it is to run in: whether any statement in
/// it is one of `BEGIN`, `START`, `COMMIT`, `END`, `ROLLBACK`, `ABORT` and `PREPARE`.
///
/// `ROLLBACK TO` is among them: behind it a transaction continues in which a statement failed.
pub(super) fn controls_transaction(sql: &str, dialect: Dialect) -> bool {
    // Without a backslash the two readings are one.
    let may_escape = dialect.has_escape_strings() && sql.contains('\\');
    let as_a_letter = Tokens::of(sql, dialect);
    let as_escape = Tokens { backslash: Backslash::Escapes, ..as_a_letter.clone() };
    has_transaction_control(as_a_letter) || may_escape && has_transaction_control(as_escape)
}

fn has_transaction_control(tokens: Tokens<'_>) -> bool {
    const CONTROLS: [&str; 7] = ["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE"];
    firsts(tokens).any(|token| matches!(token, Token::Word(word) if is_one_of(word, &CONTROLS)))
}

/// Whether a text is more than one statement. Behind the first, SQLite executes nothing.
#[cfg(feature = "sqlite")]
pub(super) fn holds_several(sql: &str, dialect: Dialect) -> bool {
    sql.contains(';') && firsts(Tokens::of(sql, dialect)).nth(1).is_some()
}

/// The first token of each statement in a text.
fn firsts<'s>(tokens: Tokens<'s>) -> impl Iterator<Item = Token<'s>> {
    let mut at = Position::Start;
    tokens.filter(|token| *token != Token::Comment).filter(move |token| {
        let before = at;
        at = before.behind(*token);
        matches!(before, Position::Start) && *token != Token::Sign(';')
    })
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Where in a text its next token stands.
#[derive(Clone, Copy)]
enum Position {
    /// At the begin of a statement.
    Start,
    /// Behind `CREATE`, and words only.
    Create,
    /// In the definition of a trigger or a routine, and in so many `BEGIN` or `CASE` of it.
    Body { depth: usize },
    /// Anywhere else in a statement.
    Inside,
}

impl Position {
    fn behind(self, token: Token<'_>) -> Self {
        const WITH_A_BODY: [&str; 3] = ["TRIGGER", "FUNCTION", "PROCEDURE"];
        match (self, token) {
            // In a body `;` separates, and END ends, no statement of the text's.
            (Self::Body { depth }, Token::Word(word)) => {
                let opens =
                    is_one_of(word, &["BEGIN"]) || (depth > 0 && is_one_of(word, &["CASE"]));
                let closes = is_one_of(word, &["END"]);
                let depth = if opens { depth + 1 } else { depth.saturating_sub(closes.into()) };
                Self::Body { depth }
            }
            (Self::Body { depth: 1.. }, Token::Sign(';')) => self,
            (_, Token::Sign(';')) => Self::Start,
            (Self::Start, Token::Word(word)) if is_one_of(word, &["CREATE"]) => Self::Create,
            (Self::Create, Token::Word(word)) if is_one_of(word, &WITH_A_BODY) => {
                Self::Body { depth: 0 }
            }
            (Self::Create, Token::Word(_)) | (Self::Body { .. }, _) => self,
            _ => Self::Inside,
        }
    }
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
        let length = if self.text.starts_with("--") {
            let ends = |c: char| c == '\n' || (c == '\r' && self.dialect.ends_lines_by_return());
            self.text.find(ends).unwrap_or(self.text.len())
        } else if self.text.starts_with("/*") {
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
        }
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

/// What either server, or a terminal that shows the text, takes for space. A byte order mark is space
/// to SQLite.
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

#[cfg(test)]
mod tests;
