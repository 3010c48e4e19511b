//! The options in the attributes' parentheses, each checked where it is written.

use std::time::Duration;

use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Error, Ident, LitInt, LitStr, Result, Token, Type, bracketed, parenthesized};

/// Longest name of a definition, in characters.
const MAX_NAME: usize = 100;

/// `#[atomic_phases(name = "..", version = 1, app = Type)]`.
pub(crate) struct DefinitionOptions {
    pub(crate) name: LitStr,
    pub(crate) version: LitInt,
    pub(crate) app: Option<Type>,
}

impl Parse for DefinitionOptions {
    fn parse(input: ParseStream) -> Result<Self> {
        const EXAMPLE: &str = "write #[atomic_phases(name = \"rides.create\", version = 1)]";
        let (mut name, mut version, mut app) = (None, None, None);
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            match option.to_string().as_str() {
                "name" => set(&mut name, &option, input.parse::<LitStr>()?)?,
                "version" => set(&mut version, &option, input.parse::<LitInt>()?)?,
                "app" => set(&mut app, &option, input.parse::<Type>()?)?,
                _ => {
                    let text =
                        format!("unknown option `{option}`: `name`, `version` and `app` are known");
                    return Err(Error::new(option.span(), text));
                }
            }
            comma(input)?;
        }
        let missing = |what| Error::new(input.span(), format!("`{what}` is missing: {EXAMPLE}"));
        let name = name.ok_or_else(|| missing("name"))?;
        let version = version.ok_or_else(|| missing("version"))?;
        let length = name.value().chars().count();
        if length == 0 || length > MAX_NAME {
            let text =
                format!("a definition's name has 1 to {MAX_NAME} characters; this has {length}");
            return Err(Error::new(name.span(), text));
        }
        if !matches!(version.base10_parse::<u32>(), Ok(1..=0x7fff_ffff)) {
            let text = "a version is a number from 1 to 2147483647";
            return Err(Error::new(version.span(), text));
        }
        Ok(Self { name, version, app })
    }
}

/// `#[phase(..)]`.
#[derive(Default)]
pub(crate) struct PhaseOptions {
    pub(crate) foreign: Option<Foreign>,
    pub(crate) isolation: Option<(LitStr, &'static str)>,
    pub(crate) commit: bool,
    pub(crate) was: Vec<LitStr>,
}

/// `foreign(..)`.
pub(crate) struct Foreign {
    pub(crate) keyword: Ident,
    pub(crate) effect: Effect,
}

pub(crate) enum Effect {
    Idempotent { window: Option<Duration> },
    AtMostOnce,
}

impl Parse for PhaseOptions {
    fn parse(input: ParseStream) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            match option.to_string().as_str() {
                "foreign" => {
                    let foreign = foreign(option.clone(), input)?;
                    set(&mut options.foreign, &option, foreign)?;
                }
                "isolation" => {
                    input.parse::<Token![=]>()?;
                    set(&mut options.isolation, &option, isolation(input.parse()?)?)?;
                }
                "commit" => options.commit = true,
                "was" => {
                    input.parse::<Token![=]>()?;
                    options.was.extend(names(input)?);
                }
                _ => {
                    let text = format!(
                        "unknown option `{option}`: `foreign(..)`, `isolation = \"..\"`, `commit` and \
                         `was = \"..\"` are known"
                    );
                    return Err(Error::new(option.span(), text));
                }
            }
            comma(input)?;
        }
        if let (Some(foreign), Some((isolation, _))) = (&options.foreign, &options.isolation) {
            let _ = foreign;
            let text = "a foreign phase has no transaction: remove `isolation`";
            return Err(Error::new(isolation.span(), text));
        }
        Ok(options)
    }
}

fn foreign(keyword: Ident, input: ParseStream) -> Result<Foreign> {
    const CLASSES: &str = "say what the provider does with a repeated call: `foreign(idempotent)` if it \
        honours the derived key, `foreign(idempotent, window = \"24h\")` if it forgets keys after a \
        while, `foreign(at_most_once)` if it honours none";
    if !input.peek(syn::token::Paren) {
        return Err(Error::new(
            keyword.span(),
            format!("a foreign phase needs an effect class: {CLASSES}"),
        ));
    }
    let inner;
    parenthesized!(inner in input);
    if inner.is_empty() {
        return Err(Error::new(
            keyword.span(),
            format!("a foreign phase needs an effect class: {CLASSES}"),
        ));
    }
    let class: Ident = inner.parse()?;
    comma(&inner)?;
    let mut window = None;
    while !inner.is_empty() {
        let option: Ident = inner.parse()?;
        if option != "window" {
            let text = format!("unknown option `{option}`: only `window = \"24h\"` is known here");
            return Err(Error::new(option.span(), text));
        }
        inner.parse::<Token![=]>()?;
        let text: LitStr = inner.parse()?;
        let length = duration(&text.value()).ok_or_else(|| {
            Error::new(
                text.span(),
                "a window is a whole number above 0 and a unit: \"90s\", \"30m\", \"24h\", \"7d\"",
            )
        })?;
        set(&mut window, &option, (option.span(), length))?;
        comma(&inner)?;
    }
    let effect = match (class.to_string().as_str(), window) {
        ("idempotent", window) => Effect::Idempotent { window: window.map(|(_, length)| length) },
        ("at_most_once", None) => Effect::AtMostOnce,
        ("at_most_once", Some((span, _))) => {
            let text = "an at_most_once call is never repeated, so it has no window: remove it";
            return Err(Error::new(span, text));
        }
        _ => {
            return Err(Error::new(
                class.span(),
                format!("unknown effect class `{class}`: {CLASSES}"),
            ));
        }
    };
    Ok(Foreign { keyword, effect })
}

fn isolation(level: LitStr) -> Result<(LitStr, &'static str)> {
    let variant = match level.value().as_str() {
        "read_committed" => "ReadCommitted",
        "repeatable_read" => "RepeatableRead",
        "serializable" => "Serializable",
        _ => {
            let text = "unknown isolation level: \"read_committed\", \"repeatable_read\" or \"serializable\"";
            return Err(Error::new(level.span(), text));
        }
    };
    Ok((level, variant))
}

fn names(input: ParseStream) -> Result<Vec<LitStr>> {
    if !input.peek(syn::token::Bracket) {
        return Ok(vec![input.parse()?]);
    }
    let inner;
    bracketed!(inner in input);
    let names = inner.parse_terminated(<LitStr as Parse>::parse, Token![,])?;
    Ok(names.into_iter().collect())
}

/// `24h`: a whole number above zero and one of `s`, `m`, `h`, `d`.
fn duration(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return None,
    };
    (number > 0).then(|| number.checked_mul(seconds).map(Duration::from_secs))?
}

fn set<T>(slot: &mut Option<T>, option: &Ident, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(option.span(), format!("`{option}` is given twice"))),
    }
}

fn comma(input: ParseStream) -> Result<()> {
    if !input.is_empty() {
        input.parse::<Token![,]>()?;
    }
    Ok(())
}

/// The one path in `#[reconcile(phase)]`.
pub(crate) fn reconciled_phase(attribute: &syn::Attribute) -> Result<Ident> {
    attribute.parse_args::<Ident>().map_err(|_| {
        Error::new(attribute.span(), "name the phase that it settles: #[reconcile(pilot_notified)]")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_whole_number_and_a_unit() {
        assert_eq!(duration("90s"), Some(Duration::from_secs(90)));
        assert_eq!(duration("24h"), Some(Duration::from_secs(86_400)));
        assert_eq!(duration("7d"), Some(Duration::from_secs(604_800)));
        for bad in ["", "h", "0h", "24", "24 hours", "-1h", "1.5h", "24é", "99999999999999999999d"]
        {
            assert_eq!(duration(bad), None, "{bad}");
        }
        assert_eq!(duration("18446744073709551615d"), None, "it overflows");
    }
}
