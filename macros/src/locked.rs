//! What the definition's lock file says of a change that the tokens show, told at the phase itself.
//!
//! The rules are those of `atomic-phases-compat`, which a test (`locked!`) and the command line ask, too.
//! What only a build knows, the stored form of types, is compared there.

use std::path::{Path, PathBuf};

use atomic_phases_compat::{
    Effect, Finding, Level, Levels, Lock, Locked, Locks, Output, compare, file_name,
};
use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Error, Result};

use crate::options::Effect as WrittenEffect;
use crate::parse::{Errors, Phase, Request};

/// `off` and `update` silence it.
const VARIABLE: &str = "ATOMIC_PHASES_LOCK";

/// Compares a request with its lock file in `phases/`, if there is one. The tokens that come back make
/// the compiler look again when the file changes, or what else the comparison depends on.
///
/// A file that is not there cannot be tracked. One that `locked!` writes says what the code says, so there
/// is nothing to report before the code changes, and then this is asked again. A file that comes from
/// elsewhere, with no change of the code, is compared by `locked!` when the tests run; for the editor, too, a
/// build script can say `cargo::rerun-if-changed=phases`.
pub(crate) fn compared(request: &Request) -> Result<TokenStream> {
    let mut tokens = quote!(
        const _: ::std::option::Option<&::std::primitive::str> = ::std::option_env!(#VARIABLE);
    );
    let is_silenced = matches!(std::env::var(VARIABLE).as_deref(), Ok("off" | "update"));
    if let (false, Some(package)) = (is_silenced, std::env::var_os("CARGO_MANIFEST_DIR")) {
        tokens.extend(compared_in(&PathBuf::from(package), request)?);
    }
    Ok(tokens)
}

fn compared_in(package: &Path, request: &Request) -> Result<TokenStream> {
    let (name, version) = (&request.options.name, &request.options.version);
    let path = package.join("phases").join(file_name(&name.value(), version.base10_parse()?));
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(TokenStream::new()) };
    let told = |error: &dyn std::fmt::Display| {
        Error::new_spanned(name, format!("its lock file {}: {error}", path.display()))
    };
    let locked = Lock::parse(&text).map_err(|error| told(&error))?;
    let manifest = package.join("Cargo.toml");
    let settings = std::fs::read_to_string(&manifest).ok();
    let levels = Levels::from_manifest(settings.as_deref().unwrap_or_default())
        .map_err(|error| told(&error))?;
    let mut errors = Errors::default();
    for finding in findings(request, &locked) {
        if levels.of(finding.lint) >= Level::Deny {
            errors.add(Error::new(span(request, &finding), message(&finding)));
        }
    }
    errors.into_result()?;
    let read = [Some(path), settings.map(|_| manifest)].into_iter().flatten();
    let read = read.map(|path| path.to_string_lossy().into_owned());
    Ok(quote!(
        #(const _: &[::std::primitive::u8] = ::std::include_bytes!(#read);)*
    ))
}

fn findings(request: &Request, locked: &Lock) -> Vec<Finding> {
    let phases = request.phases.iter().map(|phase| as_locked(phase, locked)).collect();
    let now = Lock { phases, ..locked.clone() };
    let locks = |lock: Lock| -> Locks { [lock].into_iter().collect() };
    compare(&locks(locked.clone()), &locks(now))
}

/// A phase as far as its tokens show it: its output is taken to be what was locked.
fn as_locked(phase: &Phase, locked: &Lock) -> Locked {
    let effect = match phase.options.foreign.as_ref().map(|foreign| &foreign.effect) {
        None => Effect::Local,
        Some(WrittenEffect::AtMostOnce) => Effect::AtMostOnce,
        Some(WrittenEffect::Idempotent { window }) => Effect::Idempotent { window: *window },
    };
    let mut now = Locked {
        name: phase.function.stored_name(),
        was: phase.options.was.iter().map(syn::LitStr::value).collect(),
        effect,
        reconciles: false,
        derived: None,
        output: Output::Reply,
        asked_by: None,
    };
    if let Some(before) = locked.phases.iter().find(|before| now.is_called(&before.name)) {
        (now.output, now.derived) = (before.output.clone(), before.derived.clone());
        (now.reconciles, now.asked_by) = (before.reconciles, before.asked_by.clone());
    }
    now
}

/// Where the phase is written, or where the definition is named if it is gone.
fn span(request: &Request, finding: &Finding) -> Span {
    let named = |phase: &&Phase| finding.phase.as_deref() == Some(&phase.function.stored_name());
    match request.phases.iter().find(named) {
        Some(phase) => phase.function.name.span(),
        None => request.options.name.span(),
    }
}

fn message(finding: &Finding) -> String {
    let Finding { lint, definition, version, change, in_flight, .. } = finding;
    let phase = finding.phase.as_deref().unwrap_or_default();
    let level = match lint.level() {
        Level::Never => "no setting allows it",
        _ => "its level is set in Cargo.toml",
    };
    format!(
        "by the lock file of {definition}@{version}, phase `{phase}`: {change}. {in_flight}. Instead: {}. \
         (`{lint}`; {level}. If it was never deployed: ATOMIC_PHASES_LOCK=update cargo test)",
        finding.instead()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    const FILE: &str = r#"
        format = 1
        definition = "rides.create"
        version = 1
        state = "current"
        request = { shape = "{}" }
        phase = [
            { name = "created", kind = "local", output = "null" },
            { name = "charged", kind = "foreign", effect = "idempotent", window = "24h", provider_key = "charged", output = "null" },
            { name = "answered", kind = "local", output = "reply" },
        ]
    "#;

    /// What is told of a request with this phase between the two others.
    fn told(manifest: &str, charged: TokenStream) -> String {
        told_of(FILE, manifest, charged)
    }

    fn told_of(file: &str, manifest: &str, charged: TokenStream) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("phases")).unwrap();
        std::fs::write(dir.path().join("phases/rides.create@1.toml"), file).unwrap();
        std::fs::write(dir.path().join("Cargo.toml"), manifest).unwrap();
        let block = syn::parse2(quote! {
            impl CreateRide {
                #[phase]
                async fn created(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {}
                #charged
                #[phase]
                async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {}
            }
        });
        let options = quote!(name = "rides.create", version = 1);
        let request = Request::parse(options, block.unwrap()).unwrap();
        match compared_in(dir.path(), &request) {
            Ok(tokens) => tokens.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn what_is_locked_is_tracked() {
        let same = quote! {
            #[phase(foreign(idempotent, window = "24h"))]
            async fn charged(&self, call: ForeignCall) -> PhaseResult<()> {}
        };
        let tokens = told("", same);
        let tracks = |file: &str| {
            tokens.split("include_bytes ! (").skip(1).any(|path| {
                path.split(')')
                    .next()
                    .is_some_and(|path| path.trim().ends_with(&format!("{file}\"")))
            })
        };
        assert!(tracks("phases/rides.create@1.toml") && tracks("Cargo.toml"), "{tokens}");
    }

    #[test]
    fn a_change_that_the_tokens_show_is_an_error() {
        let renamed = quote! {
            #[phase(foreign(idempotent, window = "24h"))]
            async fn paid(&self, call: ForeignCall) -> PhaseResult<()> {}
        };
        let told_of_name = told("", renamed);
        assert!(told_of_name.starts_with(
            "error: by the lock file of rides.create@1, phase `paid`: it was charged"
        ));
        assert!(told_of_name.contains("`phase_renamed`; no setting allows it"), "{told_of_name}");
        let with_was = quote! {
            #[phase(foreign(idempotent, window = "24h"), was = "charged")]
            async fn paid(&self, call: ForeignCall) -> PhaseResult<()> {}
        };
        assert!(told("", with_was).starts_with("const _"));
        assert!(told("", TokenStream::new()).contains("`phase_removed`"));
        let once = quote! {
            #[phase(foreign(at_most_once))]
            async fn charged(&self, call: ForeignCall) -> PhaseResult<()> {}
        };
        assert!(told("", once).contains("`effect_weakened`"));
    }

    #[test]
    fn an_inserted_phase_is_caught_by_the_compiler() {
        let inserted = quote! {
            #[phase]
            async fn noted(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {}
            #[phase(foreign(idempotent, window = "24h"))]
            async fn charged(&self, call: ForeignCall) -> PhaseResult<()> {}
        };
        let told = told("", inserted);
        assert!(told.starts_with("error: ") && told.contains("phase `noted`"), "{told}");
        assert!(told.contains("`phase_inserted`"), "{told}");
    }

    #[test]
    fn a_dropped_name_is_caught_by_the_compiler() {
        let file =
            FILE.replace(r#"name = "charged", kind"#, r#"name = "charged", was = ["paid"], kind"#);
        let file = file.replace(r#"provider_key = "charged""#, r#"provider_key = "paid""#);
        let dropped = quote! {
            #[phase(foreign(idempotent, window = "24h"))]
            async fn charged(&self, call: ForeignCall) -> PhaseResult<()> {}
        };
        let told = told_of(&file, "", dropped);
        assert!(told.contains("`provider_key_changed`; no setting allows it"), "{told}");
    }

    #[test]
    fn the_levels_of_the_manifest_count() {
        let wider = || {
            quote! {
                #[phase(foreign(idempotent, window = "48h"))]
                async fn charged(&self, call: ForeignCall) -> PhaseResult<()> {}
            }
        };
        assert!(told("", wider()).contains("`window_widened`"));
        let lints = "[package.metadata.atomic-phases.lints]\nwindow_widened = \"warn\"";
        assert!(told(lints, wider()).starts_with("const _"));
    }
}
