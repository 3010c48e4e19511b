//! Only quoting: from a checked request to the code that the engine calls. The code names
//! `::atomic_phases::__private` and nothing else of ours.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::visit::Visit;
use syn::{Error, GenericParam, Generics, ImplItem, ItemImpl, Type};

use crate::check::{Argument, Checked, check};
use crate::options::{DefinitionOptions, Effect};
use crate::parse::{Function, Phase, Reconcile, Request};

pub(crate) fn atomic_phases(options: TokenStream, item: TokenStream) -> TokenStream {
    let parsed = syn::parse2::<ItemImpl>(item.clone()).map_err(|_| {
        let text = "#[atomic_phases] goes on an impl block: `impl CreateRide { .. }`";
        Error::new(Span::call_site(), text)
    });
    let mut block = match parsed {
        Ok(block) => block,
        Err(error) => {
            let error = error.into_compile_error();
            return quote!(#item #error);
        }
    };
    let expanded = syn::parse2::<DefinitionOptions>(options)
        .and_then(|options| Request::parse(options, block.clone()))
        .and_then(|request| check(&request).map(|checked| expand(&request, &checked)));
    match expanded {
        Ok(code) => code,
        Err(error) => {
            // The methods stay, so that the compiler has nothing to add to our own errors.
            strip(&mut block);
            push_generics_down(&mut block);
            let error = error.into_compile_error();
            quote!(#[allow(dead_code, unused)] #block #error)
        }
    }
}

/// A helper attribute outside of an annotated impl block.
pub(crate) fn misplaced(attribute: &str, item: TokenStream) -> TokenStream {
    let text = format!(
        "#[{attribute}] marks a method of an impl block with #[atomic_phases(name = \"..\", version = 1)]: \
         put that attribute on the block"
    );
    let error = Error::new(Span::call_site(), text).into_compile_error();
    quote!(#item #error)
}

fn strip(block: &mut ItemImpl) {
    for member in &mut block.items {
        if let ImplItem::Fn(method) = member {
            method.attrs.retain(|attribute| {
                let name =
                    attribute.path().segments.last().map(|segment| segment.ident.to_string());
                !matches!(name.as_deref(), Some("phase" | "reconcile"))
            });
        }
    }
}

fn expand(request: &Request, checked: &Checked) -> TokenStream {
    let mut block = request.item.clone();
    let moved = push_generics_down(&mut block);
    let self_ty = &request.item.self_ty;
    let generics = Implementation::of(request, checked);
    let (impl_generics, where_clause) = (&generics.parameters, &generics.where_clause);
    let (store, app) = (&generics.store, &generics.app);

    let arms = |foreign: bool| {
        let arms = request.phases.iter().zip(&checked.phases).enumerate();
        arms.filter(move |(_, (phase, _))| phase.options.foreign.is_some() == foreign)
            .map(|(index, (phase, arguments))| arm(index, phase, arguments, &moved))
            .collect::<Vec<_>>()
    };
    let (local, foreign) = (arms(false), arms(true));
    let reconciles =
        request.reconciles.iter().zip(&checked.reconciles).map(|(function, (index, arguments))| {
            reconcile_arm(*index, function, arguments, &request.phases[*index], &moved)
        });
    let phases = request.phases.iter().map(phase_data);
    let (name, version) = (&request.options.name, &request.options.version);

    quote! {
        #block

        #[automatically_derived]
        impl<#(#impl_generics),*> ::atomic_phases::__private::Phases<#store, #app> for #self_ty #where_clause {
            fn run_local<'a>(
                &'a self,
                index: usize,
                tx: &'a mut ::atomic_phases::__private::Tx<'_, #store>,
                scene: &'a ::atomic_phases::__private::Scene<'a, #app>,
            ) -> ::atomic_phases::__private::PhaseFuture<
                'a,
                ::atomic_phases::__private::Step,
                ::atomic_phases::__private::PhaseError,
            > {
                let _ = (&tx, scene);
                match index {
                    #(#local)*
                    _ => ::std::boxed::Box::pin(async { Err(::atomic_phases::__private::no_such_phase()) }),
                }
            }

            fn run_foreign<'a>(
                &'a self,
                index: usize,
                call: ::atomic_phases::__private::ForeignCall,
                scene: &'a ::atomic_phases::__private::Scene<'a, #app>,
            ) -> ::atomic_phases::__private::PhaseFuture<
                'a,
                ::atomic_phases::__private::Step,
                ::atomic_phases::__private::ForeignError,
            > {
                let _ = (&call, scene);
                match index {
                    #(#foreign)*
                    _ => ::std::boxed::Box::pin(async {
                        Err(::atomic_phases::__private::no_such_phase().into())
                    }),
                }
            }

            fn reconcile<'a>(
                &'a self,
                index: usize,
                scene: &'a ::atomic_phases::__private::Scene<'a, #app>,
            ) -> ::atomic_phases::__private::PhaseFuture<
                'a,
                ::atomic_phases::__private::Reconciled<::atomic_phases::__private::Step>,
                ::atomic_phases::__private::PhaseError,
            > {
                let _ = scene;
                match index {
                    #(#reconciles)*
                    _ => ::std::boxed::Box::pin(async { Err(::atomic_phases::__private::no_such_phase()) }),
                }
            }
        }

        #[automatically_derived]
        impl<#(#impl_generics),*> ::atomic_phases::__private::RequestDefinition<#store, #app> for #self_ty #where_clause {
            const DEFINITION: ::atomic_phases::__private::Definition = ::atomic_phases::__private::Definition {
                name: #name,
                version: #version,
                phases: &[#(#phases),*],
            };
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
                parameters.push(quote!(__Store: ::atomic_phases::__private::Store));
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
    let call = call(function, arguments, moved);
    let step = step_function(function);
    let target = match phase.options.foreign {
        None => quote!(::atomic_phases::__private::PhaseError),
        Some(_) => quote!(::atomic_phases::__private::ForeignError),
    };
    let outputs = outputs(arguments);
    // The future has to be Send; where the user's is not, the error points at the user's method.
    quote_spanned! {function.name.span()=>
        #index => ::std::boxed::Box::pin(async move {
            #outputs
            let ended = #call.await.map_err(::std::convert::Into::<#target>::into)?;
            ::std::result::Result::Ok(#step(ended)?)
        }),
    }
}

fn reconcile_arm(
    index: usize,
    reconcile: &Reconcile,
    arguments: &[Argument],
    phase: &Phase,
    moved: &Moved,
) -> TokenStream {
    let function = &reconcile.function;
    let call = call(function, arguments, moved);
    // What the phase would have returned is stored the way the phase stores it.
    let step = match phase.function.returns.is_reply() {
        true => quote!(::atomic_phases::__private::reply),
        false => quote!(|found| ::atomic_phases::__private::output(&found)),
    };
    let outputs = outputs(arguments);
    quote_spanned! {function.name.span()=>
        #index => ::std::boxed::Box::pin(async move {
            #outputs
            let found = #call
                .await
                .map_err(::std::convert::Into::<::atomic_phases::__private::PhaseError>::into)?;
            ::atomic_phases::__private::reconciled(found, #step)
        }),
    }
}

fn step_function(function: &Function) -> TokenStream {
    if function.returns.is_reply() {
        quote!(::atomic_phases::__private::reply)
    } else if function.returns.is_wrapped_in("Flow") {
        quote!(::atomic_phases::__private::flow)
    } else {
        quote!((|output| ::atomic_phases::__private::output(&output)))
    }
}

fn output_name(index: usize) -> Ident {
    format_ident!("output_{index}")
}

/// `let output_0: Ride = scene.output(0)?;` for each output that is asked for.
fn outputs(arguments: &[Argument]) -> TokenStream {
    let mut seen = Vec::new();
    let mut lets = TokenStream::new();
    for argument in arguments {
        if let Argument::Output(index, ty) = argument
            && !seen.contains(index)
        {
            seen.push(*index);
            let name = output_name(*index);
            lets.extend(quote!(let #name: #ty = scene.output(#index)?;));
        }
    }
    lets
}

fn call(function: &Function, arguments: &[Argument], moved: &Moved) -> TokenStream {
    let name = &function.name;
    let turbofish = moved.turbofish(name);
    let arguments = arguments.iter().map(|argument| match argument {
        Argument::Tx => quote!(tx),
        Argument::Call => quote!(call),
        Argument::Context => quote!(scene.context()),
        Argument::Key => quote!(scene.derived_key()?),
        Argument::App => quote!(scene.app()),
        Argument::Output(index, _) => {
            let name = output_name(*index);
            quote!(&#name)
        }
    });
    quote!(self.#name #turbofish (#(#arguments),*))
}

/// A phase as data.
fn phase_data(phase: &Phase) -> TokenStream {
    let name = phase.function.name.to_string();
    let was = &phase.options.was;
    let commit = phase.options.commit;
    let kind = match &phase.options.foreign {
        None => {
            let level =
                phase.options.isolation.as_ref().map_or("ReadCommitted", |(_, level)| *level);
            let level = Ident::new(level, Span::call_site());
            quote!(Local(::atomic_phases::__private::Isolation::#level))
        }
        Some(foreign) => {
            let effect = match foreign.effect {
                Effect::AtMostOnce => quote!(AtMostOnce),
                Effect::Idempotent { window: None } => {
                    quote!(Idempotent { window: ::std::option::Option::None })
                }
                Effect::Idempotent { window: Some(window) } => {
                    let seconds = window.as_secs();
                    quote!(Idempotent {
                        window: ::std::option::Option::Some(::std::time::Duration::from_secs(#seconds))
                    })
                }
            };
            quote!(Foreign(::atomic_phases::__private::EffectClass::#effect))
        }
    };
    quote! {
        ::atomic_phases::__private::Phase {
            name: #name,
            was: &[#(#was),*],
            kind: ::atomic_phases::__private::PhaseKind::#kind,
            commit: #commit,
        }
    }
}

/// Which methods took over the impl block's type parameters.
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
    let mut moved = Moved { parameters: Vec::new(), methods: Vec::new() };
    let free: Vec<GenericParam> = block
        .generics
        .params
        .iter()
        .filter(|param| match param {
            GenericParam::Type(param) => !type_mentions(&block.self_ty, &param.ident),
            _ => false,
        })
        .cloned()
        .collect();
    if free.is_empty() {
        return moved;
    }
    moved.parameters = free
        .iter()
        .filter_map(|param| match param {
            GenericParam::Type(param) => Some(param.ident.clone()),
            _ => None,
        })
        .collect();
    let generics: Generics = std::mem::take(&mut block.generics);
    let kept = generics.params.iter().filter(|param| !free.contains(param)).cloned().collect();
    block.generics.params = kept;
    for member in &mut block.items {
        let ImplItem::Fn(method) = member else { continue };
        let mut mentions = Mentions { names: &moved.parameters, found: false };
        mentions.visit_impl_item_fn(method);
        if !mentions.found {
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

fn type_mentions(ty: &Type, name: &Ident) -> bool {
    let names = [name.clone()];
    let mut mentions = Mentions { names: &names, found: false };
    mentions.visit_type(ty);
    mentions.found
}

struct Mentions<'n> {
    names: &'n [Ident],
    found: bool,
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.found |= self.names.contains(ident);
    }
}
