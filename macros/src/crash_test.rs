//! `#[crash_test]`: an async function that returns an explorer, as a test.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::{ParseStream, Parser};
use syn::{Error, ItemFn, Path, Result, ReturnType, Token};

use crate::expand;
use crate::options::crate_path;
use crate::pages::Page;

pub(crate) fn crash_test(options: TokenStream, item: TokenStream) -> TokenStream {
    let text = "`#[crash_test]` goes on an async function that returns an explorer: \
        `async fn a_ride_survives() -> impl Explore { explore(..) }`";
    let Ok(function) = syn::parse2::<ItemFn>(item.clone()) else {
        let error =
            Error::new(Span::call_site(), Page::CrashTest.explains(text)).into_compile_error();
        return quote!(#item #error);
    };
    check(options, &function)
        .map(|library| expand(&function, library.as_ref()))
        // Without the test, so that there is one error and not two.
        .unwrap_or_else(Error::into_compile_error)
}

/// What a crash test says about where the library is.
fn check(options: TokenStream, function: &ItemFn) -> Result<Option<Path>> {
    let signature = &function.sig;
    let mut errors: Vec<Error> = Vec::new();
    let mut wrong = |tokens: &dyn ToTokens, text: &str| {
        errors.push(Error::new_spanned(tokens.to_token_stream(), Page::CrashTest.explains(text)));
    };
    let library = library_option.parse2(options.clone()).unwrap_or_else(|_| {
        let text = "`#[crash_test]` has one option, `crate = path`: what is explored is the explorer's \
            to say";
        wrong(&options, text);
        None
    });
    if signature.asyncness.is_none() {
        wrong(&signature.fn_token, "a crash test is an `async fn`: write `async fn`");
    }
    if !signature.inputs.is_empty() {
        let text = "a crash test has no parameters: make what it needs inside of it";
        wrong(&signature.inputs, text);
    }
    if !signature.generics.params.is_empty() {
        let text = "a crash test is for one store: write a function for each, and let both call a \
            generic one";
        wrong(&signature.generics, text);
    }
    if matches!(signature.output, ReturnType::Default) {
        let text = "a crash test returns what it explores: write `-> impl Explore`, and no `;` \
            behind the explorer";
        wrong(&signature.ident, text);
    }
    for attribute in &function.attrs {
        if attribute.path().segments.last().is_some_and(|last| last.ident == "test") {
            wrong(attribute, "`#[crash_test]` makes the test: remove this attribute");
        }
    }
    match errors.into_iter().reduce(|mut all, next| {
        all.combine(next);
        all
    }) {
        Some(error) => Err(error),
        None => Ok(library),
    }
}

/// `crate = path`, or nothing.
fn library_option(input: ParseStream) -> Result<Option<Path>> {
    if input.is_empty() {
        return Ok(None);
    }
    input.parse::<Token![crate]>()?;
    crate_path(input).map(Some)
}

fn expand(function: &ItemFn, library: Option<&Path>) -> TokenStream {
    let library = expand::library(library);
    let ItemFn { attrs, vis, sig, block } = function;
    let name = &sig.ident;
    quote! {
        #(#attrs)*
        #[::core::prelude::v1::test]
        #vis fn #name() {
            #sig #block
            #library::fault::__crash_test(#name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_another_path_it_runs_by_that() {
        let test = quote!(
            async fn a_ride_survives() -> impl Explore {}
        );
        let expanded = crash_test(quote!(crate = my::phases), test.clone()).to_string();
        assert!(expanded.contains("my :: phases :: fault :: __crash_test"), "{expanded}");
        let expanded = crash_test(TokenStream::new(), test).to_string();
        assert!(expanded.contains(":: atomic_phases :: fault :: __crash_test"), "{expanded}");
    }
}
