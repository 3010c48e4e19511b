//! Only quoting: from a checked request to the code that the engine calls.
//!
//! The code names `__private` of the library and nothing else of ours, and what it binds begins
//! with two underscores: a binding cannot shadow a constant or a unit struct, and a diesel user has
//! one of those for each column (`use rides::dsl::*`). Nor can a lifetime shadow one of the block's.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, GenericParam, Generics, ImplItem, ItemImpl, Path, parse_quote};

use crate::block;
use crate::check::{Argument, Borrow, Checked, Output, check};
use crate::jobs::staged;
use crate::locked::compared;
use crate::options::{DefinitionOptions, Effect};
use crate::pages::Page;
use crate::parse::{Function, Phase, Reconcile, Request, take_marks};
use crate::types::{borrows, mentions};

pub(crate) fn atomic_phases(options: TokenStream, item: TokenStream) -> TokenStream {
    if !block::is_impl(&item) {
        let text = "`#[atomic_phases]` goes on the impl block that holds the phases: \
            `impl CreateRide { .. }`";
        let error = Error::new(Span::call_site(), Page::Block.explains(text)).into_compile_error();
        return quote!(#item #error);
    }
    let (block, syntax) = match block::parse(item) {
        Ok(parsed) => parsed,
        Err(error) => return error.into_compile_error(),
    };
    if let Some(error) = syntax {
        return in_place_of(block, error);
    }
    let expanded = Request::parse(options, block.clone()).and_then(|request| {
        let checked = check(&request)?;
        let tracked = compared(&request)?;
        let expanded = expand(&request, &checked);
        Ok(quote!(#expanded #tracked))
    });
    expanded.unwrap_or_else(|error| in_place_of(block, error))
}

fn in_place_of(block: ItemImpl, error: Error) -> TokenStream {
    let error = error.into_compile_error();
    let rest = without_phases(block);
    quote!(#rest #error)
}

/// What is left of a block with mistakes: its methods, and a definition with no phases, so that the
/// compiler has nothing to add to our own errors, here or where the request is registered.
fn without_phases(mut block: ItemImpl) -> TokenStream {
    let mut names = Vec::new();
    block.items.retain_mut(|member| {
        let ImplItem::Fn(method) = member else { return true };
        take_marks(method);
        let is_first = !names.contains(&method.sig.ident);
        names.push(method.sig.ident.clone());
        is_first
    });
    push_generics_down(&mut block);
    block.attrs.push(parse_quote!(#[allow(dead_code, unused)]));
    let request = block.self_ty.to_token_stream();
    if block.trait_.is_some() || !block.generics.params.is_empty() || borrows(request) {
        return quote!(#block);
    }
    let options = DefinitionOptions {
        name: parse_quote!(""),
        version: parse_quote!(1),
        app: None,
        library: None,
    };
    let request = Request { options, item: block, phases: Vec::new(), reconciles: Vec::new() };
    expand(&request, &Checked::default())
}

/// A helper attribute outside of an annotated impl block.
pub(crate) fn misplaced(attribute: &str, item: TokenStream) -> TokenStream {
    let text = format!(
        "`#[{attribute}]` marks a method of an impl block with \
         `#[atomic_phases(name = \"..\", version = 1)]`: put that attribute on the block"
    );
    let error = Error::new(Span::call_site(), Page::Marks.explains(text)).into_compile_error();
    quote!(#item #error)
}

fn expand(request: &Request, checked: &Checked) -> TokenStream {
    let mut block = request.item.clone();
    let moved = push_generics_down(&mut block);
    let generics = Implementation::of(request, checked);
    let phases = phases(request, checked, &generics, &moved);
    let definition = definition(request, checked, &generics);
    let library = library(request.options.library.as_ref());
    quote! {
        #block

        const _: () = {
            use #library::__private;

            #phases
            #definition
        };
    }
}

/// How the phases are run.
fn phases(
    request: &Request,
    checked: &Checked,
    generics: &Implementation,
    moved: &Moved,
) -> TokenStream {
    let self_ty = &request.item.self_ty;
    let (impl_generics, where_clause) = (&generics.parameters, &generics.where_clause);
    let (store, app) = (&generics.store, &generics.app);

    let arms = |kind: Kind| {
        let arms = request.phases.iter().zip(&checked.phases).enumerate();
        arms.filter(move |(_, (phase, _))| Kind::of(phase) == kind)
            .map(|(index, (phase, arguments))| arm(index, phase, arguments, moved))
            .collect::<Vec<_>>()
    };
    let reconciles =
        request.reconciles.iter().zip(&checked.reconciles).map(|(function, (index, arguments))| {
            reconcile_arm(*index, function, arguments, &request.phases[*index], moved)
        });
    let reads = reads(checked);

    let run_local = run_function(
        "run_local",
        &quote!(__tx: &'__run mut __private::Tx<'_, #store>,),
        app,
        &quote!(__private::Step, __private::PhaseError),
        &arms(Kind::Local),
    );
    let run_batch = run_function(
        "run_batch",
        &quote!(__batch: &'__run mut __private::Batch<'_, #store>,),
        app,
        &quote!(__private::Step, __private::PhaseError),
        &arms(Kind::Batch),
    );
    let run_foreign = run_function(
        "run_foreign",
        &quote!(__call: __private::ForeignCall,),
        app,
        &quote!(__private::Step, __private::ForeignError),
        &arms(Kind::Foreign),
    );
    let reconcile = run_function(
        "reconcile",
        &TokenStream::new(),
        app,
        &quote!(__private::Reconciled<__private::Step>, __private::PhaseError),
        &reconciles.collect::<Vec<_>>(),
    );

    quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl<#(#impl_generics),*> __private::Phases<#store, #app> for #self_ty #where_clause {
            #run_local
            #run_batch
            #run_foreign
            #reconcile

            fn reads(
                &self,
                __index: ::std::primitive::usize,
                __output: &__private::RawValue,
                __from: ::std::primitive::usize,
            ) -> ::std::result::Result<(), __private::JsonError> {
                match __index {
                    #(#reads)*
                    _ => ::std::result::Result::Ok(()),
                }
            }
        }
    }
}

/// What the request is: its name, its phases, and what they return, ask for and stage.
fn definition(request: &Request, checked: &Checked, generics: &Implementation) -> TokenStream {
    let self_ty = &request.item.self_ty;
    let (impl_generics, where_clause) = (&generics.parameters, &generics.where_clause);
    let (store, app) = (&generics.store, &generics.app);
    let (name, version) = (&request.options.name, &request.options.version);

    let phases = request.phases.iter().enumerate().map(|(index, phase)| {
        phase_data(phase, checked.reconciles.iter().any(|(of, _)| *of == index))
    });
    let asked = (0..request.phases.len())
        .filter(|index| !request.phases[*index].function.returns.is_reply())
        .map(|index| asking(checked, index));
    let asked: Vec<Vec<usize>> = asked.collect();
    let outputs = request.phases.iter().map(|phase| &phase.function.returns);
    let outputs = outputs.filter(|returns| !returns.is_reply()).map(|returns| &returns.output);
    let jobs = staged(request.item.to_token_stream());

    quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl<#(#impl_generics),*> __private::RequestDefinition<#store, #app> for #self_ty #where_clause {
            const DEFINITION: __private::Definition = __private::Definition {
                name: #name,
                version: #version,
                phases: &[#(#phases),*],
            };

            fn outputs() -> ::std::vec::Vec<__private::ValueType> {
                #[allow(unused_imports)]
                use __private::NotAnOutput as _;
                ::std::vec![#(__private::OutputType::<#outputs>::value_type()),*]
            }

            fn asked() -> ::std::option::Option<
                &'static [&'static [::std::primitive::usize]],
            > {
                ::std::option::Option::Some(&[#(&[#(#asked),*]),*])
            }

            fn jobs() -> &'static [&'static ::std::primitive::str] {
                &[#(#jobs),*]
            }
        }
    }
}

/// The function that runs the phases of one kind: `with` is what their bodies take beside the request, and `found` is what
/// comes of them.
fn run_function(
    name: &str,
    with: &TokenStream,
    app: &TokenStream,
    found: &TokenStream,
    arms: &[TokenStream],
) -> TokenStream {
    let name = format_ident!("{name}");
    quote! {
        fn #name<'__run>(
            &'__run self,
            __index: ::std::primitive::usize,
            #with
            __app: &'__run #app,
            __inputs: &'__run __private::PhaseInputs<'__run>,
        ) -> __private::PhaseFuture<'__run, #found> {
            match __index {
                #(#arms)*
                _ => __private::no_such_phase(),
            }
        }
    }
}

/// Where the library is.
pub(crate) fn library(said: Option<&Path>) -> TokenStream {
    said.map_or_else(|| quote!(::atomic_phases), ToTokens::to_token_stream)
}

/// By which function of `Phases` a phase is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Local,
    Batch,
    Foreign,
}

impl Kind {
    fn of(phase: &Phase) -> Self {
        match phase.options.foreign {
            Some(_) => Self::Foreign,
            None if phase.function.takes_batch() => Self::Batch,
            None => Self::Local,
        }
    }
}

/// The head of the generated implementations.
struct Implementation {
    parameters: Vec<TokenStream>,
    where_clause: Option<syn::WhereClause>,
    store: TokenStream,
    app: TokenStream,
}

impl Implementation {
    fn of(request: &Request, checked: &Checked) -> Self {
        let own = &request.item.generics;
        let mut parameters: Vec<TokenStream> =
            own.params.iter().map(|param| quote!(#param)).collect();
        let store = match &checked.store {
            Some(store) => quote!(#store),
            None => {
                parameters.push(quote!(__Store: __private::Store));
                quote!(__Store)
            }
        };
        let app = match &checked.app {
            Some(app) => quote!(#app),
            None => {
                parameters.push(quote!(__App: ::std::marker::Send + ::std::marker::Sync + 'static));
                quote!(__App)
            }
        };
        Self { parameters, where_clause: own.where_clause.clone(), store, app }
    }
}

/// One phase in the match over its index.
fn arm(index: usize, phase: &Phase, arguments: &[Argument], moved: &Moved) -> TokenStream {
    let function = &phase.function;
    let ended = if phase.options.foreign.is_some() { "foreign" } else { "local" };
    let step = step(function);
    let body = quote_spanned!(place(&function.returns.output)=> #step(__ended));
    boxed(index, function, arguments, moved, ended, &body)
}

fn reconcile_arm(
    index: usize,
    reconcile: &Reconcile,
    arguments: &[Argument],
    phase: &Phase,
    moved: &Moved,
) -> TokenStream {
    let function = &reconcile.function;
    // What the phase would have returned is stored the way the phase stores it.
    let step = match &phase.function.returns.output {
        Some(output) if !phase.function.returns.is_reply() => quote!(output::<#output, _>),
        _ => quote!(reply),
    };
    let body = quote_spanned! {place(&function.returns.output)=>
        __private::reconciled(__ended, __private::#step)
    };
    boxed(index, function, arguments, moved, "local", &body)
}

/// `index => future`, which fetches the outputs, calls the user's method and makes a step in `body`.
///
/// Each bound that the user's types may not meet is at the user's own tokens: that the future is
/// `Send` at the method's name, its error's conversion at the return type.
fn boxed(
    index: usize,
    function: &Function,
    arguments: &[Argument],
    moved: &Moved,
    ended: &str,
    body: &TokenStream,
) -> TokenStream {
    let outputs = outputs(arguments);
    let call = call(function, arguments, moved);
    let ended = Ident::new(ended, Span::call_site());
    let ended = quote_spanned! {place(&function.returns.written)=>
        __private::#ended(#call.await)?
    };
    quote_spanned! {place(&function.name)=>
        #index => ::std::boxed::Box::pin(async move {
            #outputs
            let __ended = #ended;
            #body
        }),
    }
}

/// The function of `__private` that makes a step of what the method returned.
fn step(function: &Function) -> TokenStream {
    let returns = &function.returns;
    let step = if returns.is_reply() {
        "reply"
    } else if returns.is_wrapped_in("Flow") {
        "flow"
    } else {
        "output"
    };
    let step = Ident::new(step, place(&returns.output));
    quote_spanned!(step.span()=> __private::#step)
}

/// The user's place in the source, but known as generated, so that no lint judges the code there.
fn place(tokens: &impl Spanned) -> Span {
    tokens.span().resolved_at(Span::call_site())
}

fn output_name(index: usize) -> Ident {
    format_ident!("__output_{index}")
}

/// `let __output_0: Ride = __inputs.output(0)?;` for each output that is asked for.
fn outputs(arguments: &[Argument]) -> TokenStream {
    let mut seen = Vec::new();
    let mut lets = TokenStream::new();
    for argument in arguments {
        if let Argument::Output(Output { of, ty, .. }) = argument
            && !seen.contains(of)
        {
            seen.push(*of);
            let name = output_name(*of);
            lets.extend(quote_spanned!(place(ty)=> let #name: #ty = __inputs.output(#of)?;));
        }
    }
    lets
}

/// `index if from <= last => reads::<Ride>(output)`, for each output that a later phase asks for, the last
/// of them at `last`.
fn reads(checked: &Checked) -> Vec<TokenStream> {
    let of_phases = checked.phases.iter().enumerate();
    let of_reconciles = checked.reconciles.iter().map(|(index, arguments)| (*index, arguments));
    let mut asked = BTreeMap::new();
    for (by, arguments) in of_phases.chain(of_reconciles) {
        for argument in arguments {
            if let Argument::Output(Output { of, ty, .. }) = argument {
                let (_, last) = asked.entry(*of).or_insert((ty, by));
                *last = by.max(*last);
            }
        }
    }
    let arm = |(index, (ty, last))| quote_spanned!(place(ty)=> #index if __from <= #last => __private::reads::<#ty>(__output),);
    asked.into_iter().map(arm).collect()
}

/// The phases that ask for the output of this one, or whose `#[reconcile]` function does.
fn asking(checked: &Checked, output: usize) -> Vec<usize> {
    let of_phases = checked.phases.iter().enumerate();
    let of_reconciles = checked.reconciles.iter().map(|(index, arguments)| (*index, arguments));
    let asks = |arguments: &[Argument]| {
        arguments.iter().any(
            |argument| matches!(argument, Argument::Output(Output { of, .. }) if *of == output),
        )
    };
    let by = of_phases.chain(of_reconciles).filter(|(_, arguments)| asks(arguments));
    let by: BTreeSet<usize> = by.map(|(index, _)| index).collect();
    by.into_iter().collect()
}

fn call(function: &Function, arguments: &[Argument], moved: &Moved) -> TokenStream {
    let name = &function.name;
    let turbofish = moved.turbofish(name);
    let arguments = arguments.iter().map(|argument| match argument {
        Argument::Tx => quote!(__tx),
        Argument::Batch => quote!(__batch),
        Argument::Call => quote!(__call),
        Argument::Context => quote!(__inputs.context()),
        Argument::Key => quote!(__inputs.derived_key()?),
        Argument::App => quote!(__app),
        Argument::Output(Output { of, borrow, to, .. }) => {
            // A type that only has the same name is an error at the parameter.
            let place = place(to);
            let mut name = output_name(*of);
            name.set_span(place);
            match borrow {
                Borrow::Ref => quote_spanned!(place=> &#name),
                Borrow::AsRef => quote_spanned!(place=> #name.as_ref()),
                Borrow::AsDeref => quote_spanned!(place=> #name.as_deref()),
            }
        }
    });
    quote_spanned! {place(&function.returns.written)=>
        self.#name #turbofish (#(#arguments),*)
    }
}

/// A phase as data.
fn phase_data(phase: &Phase, reconciles: bool) -> TokenStream {
    let name = phase.function.stored_name();
    let was = &phase.options.was;
    let commit = phase.options.commit;
    let writes = if Kind::of(phase) == Kind::Batch { "Batch" } else { "Local" };
    let writes = Ident::new(writes, Span::call_site());
    let timeout = match &phase.options.timeout {
        None => quote!(::std::option::Option::None),
        Some((_, limit)) => {
            let millis = limit.as_millis() as u64;
            quote!(::std::option::Option::Some(::std::time::Duration::from_millis(#millis)))
        }
    };
    let kind = match &phase.options.foreign {
        None => {
            let level =
                phase.options.isolation.as_ref().map_or("ReadCommitted", |(_, level)| *level);
            let level = Ident::new(level, Span::call_site());
            quote!(#writes(__private::Isolation::#level))
        }
        Some(foreign) => {
            let effect = match foreign.effect {
                Effect::AtMostOnce => quote!(AtMostOnce),
                Effect::Idempotent { window: None } => {
                    quote!(Idempotent { window: ::std::option::Option::None })
                }
                Effect::Idempotent { window: Some(window) } => {
                    let millis = window.as_millis() as u64;
                    quote!(Idempotent {
                        window: ::std::option::Option::Some(::std::time::Duration::from_millis(#millis))
                    })
                }
            };
            quote!(Foreign(__private::EffectClass::#effect))
        }
    };
    quote! {
        __private::Phase {
            name: #name,
            was: &[#(#was),*],
            kind: __private::PhaseKind::#kind,
            commit: #commit,
            timeout: #timeout,
            reconciles: #reconciles,
        }
    }
}

/// Which methods took over the impl block's parameters.
struct Moved {
    parameters: Vec<Ident>,
    methods: Vec<Ident>,
}

impl Moved {
    fn turbofish(&self, method: &Ident) -> TokenStream {
        if !self.methods.contains(method) {
            return TokenStream::new();
        }
        let parameters = &self.parameters;
        quote!(::<#(#parameters),*>)
    }
}

/// `impl<Db: RidesDb> CreateRide` does not compile by itself, because the type does not mention
/// `Db`: such parameters move to each method that does.
fn push_generics_down(block: &mut ItemImpl) -> Moved {
    let request = block.self_ty.to_token_stream();
    let is_free = |param: &GenericParam| {
        name(param).is_some_and(|name| !mentions(request.clone(), std::slice::from_ref(name)))
    };
    let free: Vec<GenericParam> =
        block.generics.params.iter().filter(|param| is_free(param)).cloned().collect();
    let parameters: Vec<Ident> = free.iter().filter_map(name).cloned().collect();
    let mut moved = Moved { parameters, methods: Vec::new() };
    if free.is_empty() {
        return moved;
    }
    let generics: Generics = std::mem::take(&mut block.generics);
    let kept = generics.params.iter().filter(|param| !free.contains(param)).cloned().collect();
    block.generics.params = kept;
    for member in &mut block.items {
        let ImplItem::Fn(method) = member else { continue };
        if !mentions(method.to_token_stream(), &moved.parameters) {
            continue;
        }
        method.sig.generics.params.extend(free.iter().cloned());
        if let Some(clause) = &generics.where_clause {
            let own = method.sig.generics.make_where_clause();
            own.predicates.extend(clause.predicates.iter().cloned());
        }
        moved.methods.push(method.sig.ident.clone());
    }
    moved
}

/// The name of a type or constant.
fn name(param: &GenericParam) -> Option<&Ident> {
    match param {
        GenericParam::Type(param) => Some(&param.ident),
        GenericParam::Const(param) => Some(&param.ident),
        GenericParam::Lifetime(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_another_path_nothing_names_the_library_by_its_own() {
        let options = quote!(name = "a", version = 1, crate = my::phases);
        let block = quote! {
            impl Request {
                #[phase(foreign(at_most_once))]
                async fn asked(&self, call: ForeignCall) -> PhaseResult<u8> {}
                #[reconcile(asked)]
                async fn found(&self, key: &DerivedKey) -> PhaseResult<Reconciled<u8>> {}
                #[phase]
                async fn answered(&self, tx: &mut Tx<'_, Db>, asked: &u8) -> PhaseResult<Reply> {}
            }
        };
        let expanded = atomic_phases(options, block).to_string();
        assert!(!expanded.contains("compile_error"), "{expanded}");
        assert!(!expanded.contains("atomic_phases"), "{expanded}");
        assert!(expanded.contains("use my :: phases :: __private"), "{expanded}");
    }
}
