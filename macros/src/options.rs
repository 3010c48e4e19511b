//! The options in the attributes' parentheses, each checked where it is written.

use std::time::Duration;

use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, Error, Ident, LitInt, LitStr, Meta, Path, Result, Token, Type, bracketed,
    parenthesized,
};

use crate::pages::Page;

/// Longest name of a definition, in characters.
const MAX_NAME: usize = 100;
/// The same in bytes: what each store keeps, and what a pause may name.
const MAX_NAME_BYTES: usize = 200;

/// `#[atomic_phases(name = "..", version = 1, app = Type, crate = path)]`.
pub(crate) struct DefinitionOptions {
    pub(crate) name: LitStr,
    pub(crate) version: LitInt,
    pub(crate) app: Option<Type>,
    /// Where the library is; `::atomic_phases` if not said.
    pub(crate) library: Option<Path>,
}

impl Parse for DefinitionOptions {
    fn parse(input: ParseStream) -> Result<Self> {
        const EXAMPLE: &str = "write `#[atomic_phases(name = \"rides.create\", version = 1)]`";
        let (mut name, mut version, mut app, mut library) = (None, None, None, None);
        while !input.is_empty() {
            let option =
                Ident::parse_any(input).map_err(|error| Error::new(error.span(), EXAMPLE))?;
            match option.to_string().as_str() {
                "name" => {
                    let text: LitStr = value(input, "name = \"rides.create\"")?;
                    set(&mut name, &option, text)?;
                }
                "version" => {
                    let number: LitInt = value(input, "version = 1")?;
                    set(&mut version, &option, number)?;
                }
                "app" => {
                    let ty: Type = value(input, "app = AppState")?;
                    set(&mut app, &option, ty)?;
                }
                "crate" => set(&mut library, &option, crate_path(input)?)?,
                _ => {
                    let text = format!(
                        "unknown option `{option}`: a definition has `name`, `version`, `app` and \
                         `crate`; {EXAMPLE}"
                    );
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
            let text = format!(
                "a definition's name has 1 to {MAX_NAME} characters, and this has {length}: write one such as \"rides.create\""
            );
            return Err(Error::new(name.span(), text));
        }
        let bytes = name.value().len();
        if bytes > MAX_NAME_BYTES {
            let text = format!(
                "a definition's name has at most {MAX_NAME_BYTES} bytes, and this has {bytes}: write one such as \"rides.create\""
            );
            return Err(Error::new(name.span(), text));
        }
        if !is_legible(&name.value()) {
            let text = "a definition's name is not blank and has no control character: write one such as \"rides.create\"";
            return Err(Error::new(name.span(), text));
        }
        if !matches!(version.base10_parse::<u32>(), Ok(1..=0x7fff_ffff)) {
            let text = "a version is a number from 1 to 2147483647: begin with `version = 1`";
            return Err(Error::new(version.span(), text));
        }
        Ok(Self { name, version, app, library })
    }
}

/// Whether each store, list and log can have it as a name.
pub(crate) fn is_legible(name: &str) -> bool {
    !name.trim().is_empty() && !name.contains(char::is_control)
}

/// What stands behind `crate`.
pub(crate) fn crate_path(input: ParseStream) -> Result<Path> {
    const EXAMPLE: &str = "crate = my_crate::atomic_phases";
    let told = |error: Error| Error::new(error.span(), format!("write `{EXAMPLE}`"));
    input.parse::<Token![=]>().map_err(told)?;
    input.call(Path::parse_mod_style).map_err(told)
}

/// `#[phase(..)]`.
#[derive(Default)]
pub(crate) struct PhaseOptions {
    pub(crate) foreign: Option<Foreign>,
    pub(crate) isolation: Option<(LitStr, &'static str)>,
    pub(crate) commit: bool,
    pub(crate) was: Vec<LitStr>,
    pub(crate) timeout: Option<(LitStr, Duration)>,
}

/// `foreign(..)`.
pub(crate) struct Foreign {
    /// The name of the effect class, for errors.
    pub(crate) class: Ident,
    pub(crate) effect: Effect,
}

pub(crate) enum Effect {
    Idempotent { window: Option<Duration> },
    AtMostOnce,
}

impl Parse for PhaseOptions {
    fn parse(input: ParseStream) -> Result<Self> {
        let mut options = Self::default();
        let (mut commit, mut was) = (None, None);
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            match option.to_string().as_str() {
                "foreign" => set(&mut options.foreign, &option, foreign(&option, input)?)?,
                "isolation" => {
                    let level = value(input, "isolation = \"serializable\"")?;
                    set(&mut options.isolation, &option, isolation(level)?)?;
                }
                "commit" if input.is_empty() || input.peek(Token![,]) => {
                    set(&mut commit, &option, ())?;
                }
                "commit" => {
                    let text = "`commit` stands alone: write `#[phase(commit)]`";
                    return Err(Error::new(option.span(), text));
                }
                "was" => {
                    let Names(names) = value(
                        input,
                        "was = \"old\"`, or, newest first, `was = [\"newer\", \"oldest\"]",
                    )?;
                    set(&mut was, &option, names)?;
                }
                "timeout" => {
                    let text = value(input, "timeout = \"10s\"")?;
                    set(&mut options.timeout, &option, timeout(text)?)?;
                }
                _ => {
                    let text = format!(
                        "unknown option `{option}`: a phase has `foreign(..)` (without it, it is \
                         local), `isolation = \"..\"`, `commit`, `timeout = \"..\"` and `was = \"..\"`"
                    );
                    return Err(Error::new(option.span(), text));
                }
            }
            comma(input)?;
        }
        options.commit = commit.is_some();
        options.was = was.unwrap_or_default();
        if options.foreign.is_some()
            && let Some((isolation, _)) = &options.isolation
        {
            let text = "a foreign phase has no transaction: remove `isolation`";
            return Err(Error::new(isolation.span(), text));
        }
        Ok(options)
    }
}

fn foreign(keyword: &Ident, input: ParseStream) -> Result<Foreign> {
    const CLASSES: &str = "write `foreign(idempotent)` if the provider honors the derived key, \
        `foreign(idempotent, window = \"24h\")` if it forgets keys after a while, \
        `foreign(at_most_once)` if it honors none";
    let missing = |span| {
        Error::new(span, format!("a foreign phase says what its provider promises: {CLASSES}"))
    };
    if !input.peek(syn::token::Paren) {
        return Err(missing(keyword.span()));
    }
    let inner;
    parenthesized!(inner in input);
    if inner.is_empty() {
        return Err(missing(keyword.span()));
    }
    let class: Ident = inner.parse()?;
    if class == "window" {
        return Err(missing(class.span()));
    }
    comma(&inner)?;
    let mut window = None;
    while !inner.is_empty() {
        let option: Ident = inner.parse()?;
        if option == "idempotent" || option == "at_most_once" {
            let text = format!("a foreign phase has one effect class: {CLASSES}");
            return Err(Error::new(option.span(), text));
        }
        if option != "window" {
            let text = format!("unknown option `{option}`: only `window = \"24h\"` is known here");
            return Err(Error::new(option.span(), text));
        }
        let text: LitStr = value(&inner, "window = \"24h\"")?;
        let length = duration(&text.value()).ok_or_else(|| {
            Error::new(
                text.span(),
                "write the window as a whole number above 0 and a unit: \"90s\", \"30m\", \"24h\" or \"7d\"",
            )
        })?;
        set(&mut window, &option, (option.span(), length))?;
        comma(&inner)?;
    }
    let effect = match (class.to_string().as_str(), window) {
        ("idempotent", window) => Effect::Idempotent { window: window.map(|(_, length)| length) },
        ("at_most_once", None) => Effect::AtMostOnce,
        ("at_most_once", Some((span, _))) => {
            let text = "`window` says how long a provider honors the derived key, which an \
                at_most_once provider does not: remove it";
            return Err(Error::new(span, text));
        }
        _ => {
            return Err(Error::new(
                class.span(),
                format!("unknown effect class `{class}`: {CLASSES}"),
            ));
        }
    };
    Ok(Foreign { class, effect })
}

/// The longest time limit of a phase: past it a limit bounds nothing (G17).
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

fn timeout(text: LitStr) -> Result<(LitStr, Duration)> {
    match duration(&text.value()) {
        Some(limit) if limit <= LONGEST_TIMEOUT => Ok((text, limit)),
        Some(_) => Err(Error::new(
            text.span(),
            "a phase may take a day at most: write a shorter time limit, such as \"30s\" or \"5m\"",
        )),
        None => Err(Error::new(
            text.span(),
            "write the time limit as a whole number above 0 and a unit: \"500ms\", \"10s\" or \"5m\"",
        )),
    }
}

fn isolation(level: LitStr) -> Result<(LitStr, &'static str)> {
    let variant = match level.value().as_str() {
        "read_committed" => "ReadCommitted",
        "repeatable_read" => "RepeatableRead",
        "serializable" => "Serializable",
        _ => {
            let text = "unknown isolation level: write \"read_committed\", \"repeatable_read\" or \"serializable\"";
            return Err(Error::new(level.span(), text));
        }
    };
    Ok((level, variant))
}

/// `"old"` or `["newer", "oldest"]`.
struct Names(Vec<LitStr>);

impl Parse for Names {
    fn parse(input: ParseStream) -> Result<Self> {
        if !input.peek(syn::token::Bracket) {
            return Ok(Self(vec![input.parse()?]));
        }
        let inner;
        bracketed!(inner in input);
        let names = inner.parse_terminated(<LitStr as Parse>::parse, Token![,])?;
        Ok(Self(names.into_iter().collect()))
    }
}

/// What stands behind an option's `=`, or an error that shows how the option is written.
fn value<T: Parse>(input: ParseStream, example: &str) -> Result<T> {
    let told = |error: Error| Error::new(error.span(), format!("write `{example}`"));
    input.parse::<Token![=]>().map_err(told)?;
    input.parse().map_err(told)
}

/// `24h`: a whole number above zero and one of `ms`, `s`, `m`, `h`, `d`.
fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 5] =
        [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let (number, millis) =
        UNITS.iter().find_map(|(unit, millis)| Some((text.strip_suffix(unit)?, millis)))?;
    let number: u64 = number.parse().ok()?;
    (number > 0).then(|| number.checked_mul(*millis).map(Duration::from_millis))?
}

fn set<T>(slot: &mut Option<T>, option: &Ident, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(option.span(), format!("`{option}` is given twice: remove one"))),
    }
}

fn comma(input: ParseStream) -> Result<()> {
    if !input.is_empty() {
        input.parse::<Token![,]>()?;
    }
    Ok(())
}

/// What stands in `#[phase(..)]`.
pub(crate) fn phase_options(attribute: &Attribute) -> Result<PhaseOptions> {
    match &attribute.meta {
        Meta::Path(_) => Ok(PhaseOptions::default()),
        _ => attribute.parse_args().map_err(|error| Page::Options.on(error)),
    }
}

/// The one name in `#[reconcile(phase)]`.
pub(crate) fn reconciled_phase(attribute: &Attribute) -> Result<Ident> {
    attribute.parse_args().map_err(|_| {
        let text = "name the foreign phase that this settles: `#[reconcile(charge_created)]`";
        Error::new_spanned(attribute, Page::Reconcile.explains(text))
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
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        for bad in ["", "h", "0h", "24", "24 hours", "-1h", "1.5h", "24é", "99999999999999999999d"]
        {
            assert_eq!(duration(bad), None, "{bad}");
        }
        assert_eq!(duration("18446744073709551615d"), None, "it overflows");
    }
}
