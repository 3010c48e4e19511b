//! What the user wrote: an impl block taken apart into phases, reconcile functions and the rest.
//! Judges only what cannot be read at all; `check` does the rest.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ImplItem, ImplItemFn, ItemImpl, Pat,
    PathArguments, Result, ReturnType, Type,
};

use crate::options::{DefinitionOptions, PhaseOptions, reconciled_phase};

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
    /// Where the receiver is not `&self`: its span, or the signature's.
    pub(crate) bad_receiver: Option<Span>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) returns: Returns,
    /// Own generic parameters, which a phase cannot have.
    pub(crate) generics: Option<Span>,
}

/// One parameter after `&self`.
pub(crate) struct Parameter {
    pub(crate) name: Option<Ident>,
    pub(crate) ty: Type,
    pub(crate) kind: ParameterKind,
}

pub(crate) enum ParameterKind {
    /// `&mut Tx<'_, Db>`, with `Db` if it can be read.
    Tx(Option<Box<Type>>),
    /// `ForeignCall`.
    Call,
    /// `&RequestContext`.
    Context,
    /// `&DerivedKey`.
    Key,
    /// `&T`, to be found among the outputs or the application's state.
    Reference(Box<Type>),
    /// Nothing that a phase can be given.
    Other,
}

/// A return type, taken apart.
pub(crate) struct Returns {
    pub(crate) span: Span,
    /// `T` of `PhaseResult<T, ..>`; `None` where it is no result.
    pub(crate) output: Option<Type>,
    /// `Flow<..>` or `Reconciled<..>` around it.
    pub(crate) wrapper: Option<Ident>,
}

impl Request {
    /// Takes the attributes off the methods, so that what is left compiles by itself.
    pub(crate) fn parse(options: DefinitionOptions, mut item: ItemImpl) -> Result<Self> {
        if let Some((_, path, _)) = &item.trait_ {
            let text = "#[atomic_phases] goes on an inherent impl block: `impl CreateRide { .. }`";
            return Err(Error::new(path.span(), text));
        }
        let (mut phases, mut reconciles, mut errors) = (Vec::new(), Vec::new(), Errors::default());
        for member in &mut item.items {
            let ImplItem::Fn(method) = member else { continue };
            let phase = take(&mut method.attrs, "phase");
            let reconcile = take(&mut method.attrs, "reconcile");
            match (phase, reconcile) {
                (None, None) => {}
                (Some(_), Some(both)) => {
                    let text =
                        "a method is a phase or a reconcile function: take one attribute off";
                    errors.add(Error::new(both.span(), text));
                }
                (Some(attribute), None) => {
                    if let Some(options) = errors.keep(phase_options(&attribute)) {
                        phases.push(Phase { options, function: Function::of(method) });
                    }
                }
                (None, Some(attribute)) => {
                    if let Some(settles) = errors.keep(reconciled_phase(&attribute)) {
                        reconciles.push(Reconcile { settles, function: Function::of(method) });
                    }
                }
            }
        }
        errors.into_result()?;
        Ok(Self { options, item, phases, reconciles })
    }
}

fn take(attributes: &mut Vec<Attribute>, name: &str) -> Option<Attribute> {
    let is_it = |attribute: &Attribute| {
        attribute.path().segments.last().is_some_and(|segment| segment.ident == name)
    };
    let at = attributes.iter().position(is_it)?;
    Some(attributes.remove(at))
}

fn phase_options(attribute: &Attribute) -> Result<PhaseOptions> {
    match &attribute.meta {
        syn::Meta::Path(_) => Ok(PhaseOptions::default()),
        _ => attribute.parse_args(),
    }
}

impl Function {
    fn of(method: &ImplItemFn) -> Self {
        let signature = &method.sig;
        let mut inputs = signature.inputs.iter();
        let bad_receiver = match inputs.next() {
            Some(FnArg::Receiver(receiver)) => {
                let shared = receiver.reference.is_some() && receiver.mutability.is_none();
                (!shared || receiver.colon_token.is_some()).then(|| receiver.span())
            }
            Some(other) => Some(other.span()),
            None => Some(signature.ident.span()),
        };
        let skip = usize::from(matches!(signature.inputs.first(), Some(FnArg::Receiver(_))));
        let parameters = signature.inputs.iter().skip(skip).filter_map(Parameter::of).collect();
        Self {
            name: signature.ident.clone(),
            is_async: signature.asyncness.is_some(),
            bad_receiver,
            parameters,
            returns: Returns::of(&signature.output, signature.ident.span()),
            generics: (!signature.generics.params.is_empty()).then(|| signature.generics.span()),
        }
    }
}

impl Parameter {
    fn of(input: &FnArg) -> Option<Self> {
        let FnArg::Typed(typed) = input else { return None };
        let name = match &*typed.pat {
            Pat::Ident(pattern) => Some(pattern.ident.clone()),
            _ => None,
        };
        Some(Self { name, ty: (*typed.ty).clone(), kind: ParameterKind::of(&typed.ty) })
    }

    pub(crate) fn span(&self) -> Span {
        self.ty.span()
    }
}

impl ParameterKind {
    fn of(ty: &Type) -> Self {
        match ty {
            Type::Reference(reference) => {
                let inner = &*reference.elem;
                match (last_segment(inner), reference.mutability) {
                    (Some(segment), Some(_)) if segment.ident == "Tx" => {
                        Self::Tx(type_argument(&segment.arguments, 0).map(Box::new))
                    }
                    (_, Some(_)) => Self::Other,
                    (Some(segment), None) if segment.ident == "Tx" => Self::Other,
                    (Some(segment), None) if segment.ident == "RequestContext" => Self::Context,
                    (Some(segment), None) if segment.ident == "DerivedKey" => Self::Key,
                    (_, None) => Self::Reference(Box::new(inner.clone())),
                }
            }
            other => match last_segment(other) {
                Some(segment) if segment.ident == "ForeignCall" => Self::Call,
                _ => Self::Other,
            },
        }
    }
}

impl Returns {
    fn of(output: &ReturnType, fallback: Span) -> Self {
        let ReturnType::Type(_, ty) = output else {
            return Self { span: fallback, output: None, wrapper: None };
        };
        let result = last_segment(ty)
            .filter(|segment| segment.ident == "PhaseResult" || segment.ident == "Result")
            .and_then(|segment| type_argument(&segment.arguments, 0));
        let Some(inner) = result else {
            return Self { span: ty.span(), output: None, wrapper: None };
        };
        let wrapped = last_segment(&inner)
            .filter(|segment| segment.ident == "Flow" || segment.ident == "Reconciled")
            .and_then(|segment| {
                Some((segment.ident.clone(), type_argument(&segment.arguments, 0)?))
            });
        match wrapped {
            Some((wrapper, output)) => {
                Self { span: ty.span(), output: Some(output), wrapper: Some(wrapper) }
            }
            None => Self { span: ty.span(), output: Some(inner), wrapper: None },
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

fn last_segment(ty: &Type) -> Option<&syn::PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        Type::Group(group) => last_segment(&group.elem),
        Type::Paren(paren) => last_segment(&paren.elem),
        _ => None,
    }
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
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(crate) fn at(&mut self, span: Span, text: impl std::fmt::Display) {
        self.add(Error::new(span, text));
    }

    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    pub(crate) fn into_result(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
