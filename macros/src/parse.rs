//! What the user wrote: an impl block taken apart into phases, reconcile functions and the rest.
//! Judges only what cannot be read at all; `check` does the rest.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::visit::Visit;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ImplItem, ImplItemFn, ItemImpl, Pat, PatType,
    PathArguments, Result, ReturnType, Type, parse_quote,
};

use crate::options::{DefinitionOptions, PhaseOptions, phase_options, reconciled_phase};

/// An annotated impl block.
pub(crate) struct Request {
    pub(crate) options: DefinitionOptions,
    pub(crate) item: ItemImpl,
    pub(crate) phases: Vec<Phase>,
    pub(crate) reconciles: Vec<Reconcile>,
}

/// A method marked `#[phase]`.
pub(crate) struct Phase {
    pub(crate) options: PhaseOptions,
    pub(crate) function: Function,
}

/// A method marked `#[reconcile(phase)]`.
pub(crate) struct Reconcile {
    pub(crate) settles: Ident,
    pub(crate) function: Function,
}

/// What matters of a phase's or reconcile function's signature.
pub(crate) struct Function {
    pub(crate) name: Ident,
    pub(crate) is_async: bool,
    /// What stands where `&self` belongs: another receiver, or nothing (then the name).
    pub(crate) bad_receiver: Option<TokenStream>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) returns: Returns,
    /// Own generic parameters, which a phase cannot have.
    pub(crate) generics: Option<TokenStream>,
    /// A `#[cfg]` on the whole method.
    pub(crate) condition: Option<Attribute>,
}

/// One parameter after `&self`.
pub(crate) struct Parameter {
    /// All of it, for errors.
    pub(crate) written: PatType,
    pub(crate) name: Option<Ident>,
    pub(crate) held: Held,
    /// Its type, without the reference.
    pub(crate) ty: Type,
    pub(crate) kind: ParameterKind,
}

/// `T`, `&T` or `&mut T`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Owned,
    Shared,
    Exclusively,
}

/// What a parameter asks for, by the name of its type, however it is held.
pub(crate) enum ParameterKind {
    /// `Tx<'_, Db>`, with `Db` if it can be read.
    Tx(Option<Box<Type>>),
    /// `Batch<'_, Db>`, with `Db` if it can be read.
    Batch(Option<Box<Type>>),
    /// `ForeignCall`.
    Call,
    /// `RequestContext`.
    Context,
    /// `DerivedKey`.
    Key,
    /// Anything else: to be found among the outputs, or the application's state.
    Value,
}

/// A return type, taken apart.
pub(crate) struct Returns {
    /// All of it, or the function's name where there is none, for errors.
    pub(crate) written: TokenStream,
    /// `T` of `PhaseResult<T, ..>`; `None` where it is no result.
    pub(crate) output: Option<Type>,
    /// `Flow<..>` or `Reconciled<..>` around it.
    pub(crate) wrapper: Option<Ident>,
}

impl Request {
    /// Takes the attributes off the methods, so that what is left compiles by itself.
    pub(crate) fn parse(options: TokenStream, mut item: ItemImpl) -> Result<Self> {
        if let Some((_, path, _)) = &item.trait_ {
            let text = "phases are the request's own methods: move them from this trait's impl to \
                an inherent one, `impl CreateRide { .. }`";
            return Err(Error::new_spanned(path, text));
        }
        let (options, (phases, reconciles)) = both(syn::parse2(options), methods(&mut item))?;
        Ok(Self { options, item, phases, reconciles })
    }
}

fn methods(item: &mut ItemImpl) -> Result<(Vec<Phase>, Vec<Reconcile>)> {
    let (mut phases, mut reconciles, mut errors) = (Vec::new(), Vec::new(), Errors::default());
    for member in &mut item.items {
        let ImplItem::Fn(method) = member else { continue };
        let marks = take_marks(method);
        if !marks.is_empty() {
            // `async` and `&self` are ours to ask for, so no lint may blame the user for them.
            method.attrs.push(parse_quote!(#[allow(clippy::unused_async, clippy::unused_self)]));
        }
        match marks.as_slice() {
            [] => {}
            [mark] if is_mark(mark, "phase") => {
                if let Some(options) = errors.keep(phase_options(mark)) {
                    phases.push(Phase { options, function: Function::of(method) });
                }
            }
            [mark] => {
                if let Some(settles) = errors.keep(reconciled_phase(mark)) {
                    reconciles.push(Reconcile { settles, function: Function::of(method) });
                }
            }
            [_, second, ..] => {
                let text = "a method is one phase or one reconcile function: remove this attribute, \
                    and write all options of a phase into one `#[phase(.., ..)]`";
                errors.at(second, text);
            }
        }
    }
    errors.into_result()?;
    Ok((phases, reconciles))
}

/// Takes off `#[phase]` and `#[reconcile]`, also with a path in front.
pub(crate) fn take_marks(method: &mut ImplItemFn) -> Vec<Attribute> {
    let is_ours = |mark: &mut Attribute| is_mark(mark, "phase") || is_mark(mark, "reconcile");
    method.attrs.extract_if(.., is_ours).collect()
}

fn is_mark(attribute: &Attribute, name: &str) -> bool {
    attribute.path().segments.last().is_some_and(|segment| segment.ident == name)
}

impl Function {
    fn of(method: &ImplItemFn) -> Self {
        let signature = &method.sig;
        let bad_receiver = match signature.receiver() {
            Some(receiver) => {
                let shared = receiver.reference.is_some() && receiver.mutability.is_none();
                (!shared || receiver.colon_token.is_some()).then(|| receiver.to_token_stream())
            }
            None => Some(signature.ident.to_token_stream()),
        };
        let generics = &signature.generics.params;
        let is_condition = |attribute: &&Attribute| attribute.path().is_ident("cfg");
        Self {
            name: signature.ident.clone(),
            is_async: signature.asyncness.is_some(),
            bad_receiver,
            parameters: signature.inputs.iter().filter_map(Parameter::of).collect(),
            returns: Returns::of(&signature.output, &signature.ident),
            generics: (!generics.is_empty()).then(|| generics.to_token_stream()),
            condition: method.attrs.iter().find(is_condition).cloned(),
        }
    }

    /// Whether it hands its statements over.
    pub(crate) fn takes_batch(&self) -> bool {
        self.parameters.iter().any(|parameter| matches!(parameter.kind, ParameterKind::Batch(_)))
    }

    /// The name as it is stored: `r#match` is called `match`.
    pub(crate) fn stored_name(&self) -> String {
        self.name.unraw().to_string()
    }
}

impl Parameter {
    fn of(input: &FnArg) -> Option<Self> {
        let FnArg::Typed(written) = input else { return None };
        let name = match &*written.pat {
            Pat::Ident(pattern) => Some(pattern.ident.clone()),
            _ => None,
        };
        let (held, ty) = match &*written.ty {
            Type::Reference(reference) => {
                let held = reference.mutability.map_or(Held::Shared, |_| Held::Exclusively);
                (held, &*reference.elem)
            }
            owned => (Held::Owned, owned),
        };
        let kind = ParameterKind::of(ty, held);
        Some(Self { written: written.clone(), name, held, ty: ty.clone(), kind })
    }
}

impl ParameterKind {
    fn of(ty: &Type, held: Held) -> Self {
        let Some(segment) = last_segment(ty) else { return Self::Value };
        // `&Batch`, with no lifetime, is an output that an application calls so.
        let is_theirs = held == Held::Shared && !has_lifetime(&segment.arguments);
        match segment.ident.to_string().as_str() {
            "Tx" => Self::Tx(type_argument(&segment.arguments, 0).map(Box::new)),
            "Batch" if !is_theirs => {
                Self::Batch(type_argument(&segment.arguments, 0).map(Box::new))
            }
            "ForeignCall" => Self::Call,
            "RequestContext" => Self::Context,
            "DerivedKey" => Self::Key,
            _ => Self::Value,
        }
    }

    /// The name of the type by which a local phase writes.
    pub(crate) fn handle(&self) -> &'static str {
        match self {
            Self::Batch(_) => "Batch",
            _ => "Tx",
        }
    }
}

impl Returns {
    fn of(output: &ReturnType, function: &Ident) -> Self {
        let ReturnType::Type(_, ty) = output else {
            return Self { written: function.to_token_stream(), output: None, wrapper: None };
        };
        let written = ty.to_token_stream();
        let result = last_segment(ty)
            .filter(|segment| segment.ident == "PhaseResult" || segment.ident == "Result")
            .and_then(|segment| type_argument(&segment.arguments, 0));
        let Some(inner) = result else { return Self { written, output: None, wrapper: None } };
        let wrapped = last_segment(&inner)
            .filter(|segment| segment.ident == "Flow" || segment.ident == "Reconciled")
            .and_then(|segment| {
                Some((segment.ident.clone(), type_argument(&segment.arguments, 0)?))
            });
        match wrapped {
            Some((wrapper, output)) => {
                Self { written, output: Some(output), wrapper: Some(wrapper) }
            }
            None => Self { written, output: Some(inner), wrapper: None },
        }
    }

    pub(crate) fn is_reply(&self) -> bool {
        self.output.as_ref().is_some_and(|ty| is_called(ty, "Reply"))
    }

    pub(crate) fn is_wrapped_in(&self, name: &str) -> bool {
        self.wrapper.as_ref().is_some_and(|wrapper| wrapper == name)
    }
}

/// Whether the type is a path that ends in `name`.
pub(crate) fn is_called(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name)
}

/// Whether `name` stands anywhere in the type.
pub(crate) fn mentions(ty: &Type, name: &Ident) -> bool {
    let mut search = Search { names: std::slice::from_ref(name), found: false };
    search.visit_type(ty);
    search.found
}

/// Looks for any of some names.
pub(crate) struct Search<'n> {
    pub(crate) names: &'n [Ident],
    pub(crate) found: bool,
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.found |= self.names.contains(ident);
    }
}

fn last_segment(ty: &Type) -> Option<&syn::PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        Type::Group(group) => last_segment(&group.elem),
        Type::Paren(paren) => last_segment(&paren.elem),
        _ => None,
    }
}

fn has_lifetime(arguments: &PathArguments) -> bool {
    let PathArguments::AngleBracketed(arguments) = arguments else { return false };
    arguments.args.iter().any(|argument| matches!(argument, GenericArgument::Lifetime(_)))
}

fn type_argument(arguments: &PathArguments, index: usize) -> Option<Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    });
    types.into_iter().nth(index)
}

/// All mistakes at once: a user mends them in one go.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Underlines all of `tokens`.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, text: impl std::fmt::Display) {
        self.add(Error::new_spanned(tokens, text));
    }

    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    pub(crate) fn into_result(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Both, or the mistakes of both.
fn both<A, B>(one: Result<A>, other: Result<B>) -> Result<(A, B)> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(mut one), Err(other)) => {
            one.combine(other);
            Err(one)
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}
