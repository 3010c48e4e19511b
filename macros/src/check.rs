//! Is it a request? Each mistake is an error on the user's own tokens that says what to write
//! instead; all of them are reported together.

mod arguments;

use quote::ToTokens;
use syn::{GenericParam, LitStr, Result, Type};

pub(crate) use self::arguments::{Argument, Borrow, Output};
use crate::options::{Effect, is_legible};
use crate::pages::Page;
use crate::parse::{Errors, Function, Held, Parameter, ParameterKind, Phase, Reconcile, Request};
use crate::types::{alike, borrows, mentions, type_text};

/// Longest name of a phase: the width of the column for recovery points.
const MAX_PHASE_NAME: usize = 50;
const RESERVED: [&str; 2] = ["started", "finished"];

/// A request in which everything that is asked for can be given.
#[derive(Default)]
pub(crate) struct Checked {
    /// The store that the local phases name; `None` where there is no local phase.
    pub(crate) store: Option<Type>,
    /// The type of the application's state, if anything asks for it.
    pub(crate) app: Option<Type>,
    /// The arguments of each phase, in order.
    pub(crate) phases: Vec<Vec<Argument>>,
    /// The arguments of each reconcile function, and the index of its phase.
    pub(crate) reconciles: Vec<(usize, Vec<Argument>)>,
}

pub(crate) fn check(request: &Request) -> Result<Checked> {
    let mut checking = Checking { request, errors: Errors::default(), store: None, app: None };
    checking.request_type();
    checking.names();
    let phases = checking.phases();
    let reconciles = checking.reconciles();
    let Checking { errors, store, app, .. } = checking;
    errors.into_result()?;
    Ok(Checked { store, app, phases, reconciles })
}

struct Checking<'r> {
    request: &'r Request,
    errors: Errors,
    store: Option<Type>,
    app: Option<Type>,
}

impl Checking<'_> {
    fn request_type(&mut self) {
        let item = &self.request.item;
        if self.request.phases.is_empty() {
            let text = "a request needs at least one phase: mark a method with `#[phase]`";
            self.errors.at(Page::Block, &item.self_ty, text);
        }
        let text = "a request is one type that owns its data, because its rows are read back by the \
            definition's name alone: write the block for a concrete type (its parameters may be the \
            store and the application's state)";
        let request = item.self_ty.to_token_stream();
        let mut is_told = false;
        for param in &item.generics.params {
            let name = match param {
                GenericParam::Type(param) => &param.ident,
                GenericParam::Const(param) => &param.ident,
                GenericParam::Lifetime(param) => &param.lifetime.ident,
            };
            if mentions(request.clone(), std::slice::from_ref(name)) {
                self.errors.at(Page::Block, param, text);
                is_told = true;
            }
        }
        if !is_told && borrows(request) {
            self.errors.at(Page::Block, &item.self_ty, text);
        }
    }

    fn names(&mut self) {
        let mut seen: Vec<String> = Vec::new();
        for phase in &self.request.phases {
            let written = &phase.function.name;
            let name = phase.function.stored_name();
            let length = name.chars().count();
            if RESERVED.contains(&name.as_str()) {
                let text = format!(
                    "`{name}` is the recovery point of a request that has not begun or is done: \
                     name the phase after what it has achieved, `ride_created` say"
                );
                self.errors.at(Page::Names, written, text);
            } else if length > MAX_PHASE_NAME {
                let text = format!(
                    "a phase's name has at most {MAX_PHASE_NAME} characters, the width of the \
                     column for recovery points, and this has {length}: shorten it"
                );
                self.errors.at(Page::Names, written, text);
            } else if seen.contains(&name) {
                let text = format!(
                    "there is a phase `{name}` already: each recovery point needs its own name"
                );
                self.errors.at(Page::Names, written, text);
            }
            seen.push(name);
        }
        let mut earlier: Vec<String> = Vec::new();
        for was in self.request.phases.iter().flat_map(|phase| &phase.options.was) {
            self.old_name(was, &seen, &earlier);
            earlier.push(was.value());
        }
    }

    fn old_name(&mut self, was: &LitStr, present: &[String], earlier: &[String]) {
        let name = was.value();
        let length = name.chars().count();
        if length == 0 || length > MAX_PHASE_NAME || RESERVED.contains(&name.as_str()) {
            let text = format!(
                "no phase was ever called that, because a name has 1 to {MAX_PHASE_NAME} \
                 characters and is not `started` or `finished`: write the name that stored rows \
                 may hold"
            );
            self.errors.at(Page::Names, was, text);
        } else if !is_legible(&name) {
            let text = "no phase was ever called that, because a name is not blank and has no control \
                character: write the name that stored rows may hold";
            self.errors.at(Page::Names, was, text);
        } else if present.contains(&name) {
            let text = format!(
                "a phase is called `{name}` now, so a stored row could mean either: write a name \
                 that no phase has any more"
            );
            self.errors.at(Page::Names, was, text);
        } else if earlier.contains(&name) {
            let text = format!("`{name}` is given as an old name already: remove one of the two");
            self.errors.at(Page::Names, was, text);
        }
    }

    fn phases(&mut self) -> Vec<Vec<Argument>> {
        let request = self.request;
        let last = request.phases.len().saturating_sub(1);
        let mut all = Vec::new();
        for (index, phase) in request.phases.iter().enumerate() {
            self.function(&phase.function, Role::Phase);
            self.returns(phase, index == last);
            match &phase.options.foreign {
                None => self.local(phase),
                Some(_) => self.foreign(phase),
            }
            all.push(self.arguments(&phase.function, index, Role::Phase));
        }
        all
    }

    fn function(&mut self, function: &Function, role: Role) {
        let (name, what, page) = (&function.name, role.text(), role.page());
        if !function.is_async {
            self.errors.at(page, name, format!("{what} is an `async fn`: write `async fn {name}`"));
        }
        if function.is_unsafe {
            let text = format!(
                "{what} is called by the engine, which can promise it nothing: write a safe function, \
                 and `unsafe` inside of its body"
            );
            self.errors.at(page, name, text);
        }
        if let Some(receiver) = &function.bad_receiver {
            let text = format!(
                "{what} takes `&self` first: each attempt reads the same request, and none changes it"
            );
            self.errors.at(page, receiver, text);
        }
        if let Some(generics) = &function.generics {
            let text = format!(
                "{what} has no generic parameters of its own: write a concrete type, or, if it is \
                 the store, `impl<Db: RidesDb> ..` on the block, by a trait of your own over `Store`"
            );
            self.errors.at(Page::Stores, generics, text);
        }
        if let Some(condition) = &function.condition {
            let text = format!(
                "{what} and what it asks for cannot be conditional, because stored rows count on it: \
                 put the `#[cfg]` inside of its body"
            );
            self.errors.at(page, condition, text);
        }
    }

    fn returns(&mut self, phase: &Phase, last: bool) {
        let returns = &phase.function.returns;
        let name = &phase.function.name;
        let Some(output) = &returns.output else {
            let wanted = if last { "Reply" } else { "Output" };
            let text = format!(
                "a phase returns `PhaseResult<{wanted}>`, or a `Result`: write it out, because an alias \
                 cannot be looked into"
            );
            self.errors.at(Page::Returns, &returns.written, text);
            return;
        };
        if let Type::Reference(_) = output {
            let text = "an output is stored and read back by later phases, so it owns its data: \
                return `String` for `&str`, say";
            self.errors.at(Page::Returns, output, text);
            return;
        }
        if returns.is_wrapped_in("Reconciled") {
            self.errors
                .at(Page::Returns, &returns.written, "only a `#[reconcile(..)]` function returns `Reconciled`: return `PhaseResult<Output>`");
        } else if last && !(returns.is_reply() && returns.wrapper.is_none()) {
            let text = format!(
                "`{name}` is the last phase, and the last phase answers: return `PhaseResult<Reply>`, \
                 or put the phase that answers behind it"
            );
            self.errors.at(Page::Returns, &returns.written, text);
        } else if !last && returns.is_reply() {
            let text = format!(
                "`{name}` is not the last phase: return its output, `PhaseResult<Flow<Output>>` if it \
                 may finish early, or put it last (an output of your own needs another name than `Reply`)"
            );
            self.errors.at(Page::Returns, &returns.written, text);
        }
    }

    fn local(&mut self, phase: &Phase) {
        let name = &phase.function.name;
        let mut taken: Option<&Parameter> = None;
        for parameter in &phase.function.parameters {
            match &parameter.kind {
                ParameterKind::Tx(store) | ParameterKind::Batch(store) => {
                    self.store(parameter, store.as_deref());
                    match taken {
                        None => taken = Some(parameter),
                        Some(first) => self.second_transaction(first, parameter),
                    }
                }
                ParameterKind::Call => {
                    let text = "a local phase makes no foreign call: a crash before its commit would \
                        repeat it. Move the call to a phase of its own, \
                        `#[phase(foreign(idempotent))]`";
                    self.errors.at(Page::Signature, &parameter.written, text);
                }
                _ => {}
            }
        }
        if taken.is_none() && !phase.function.hides_its_handle() {
            let text = format!(
                "`{name}` is a local phase and takes its transaction: `tx: &mut Tx<'_, Db>`, or \
                 `batch: &mut Batch<'_, Db>` if it needs no answer of the database; if it makes a \
                 foreign call, write `#[phase(foreign(..))]`"
            );
            self.errors.at(Page::Signature, name, text);
        }
    }

    fn second_transaction(&mut self, first: &Parameter, second: &Parameter) {
        let text = match first.kind.handle() == second.kind.handle() {
            true => "a local phase has one transaction: remove this parameter",
            false => {
                "a local phase writes by a `Tx` or by a `Batch`, not by both: keep the `Tx` if the \
                 phase needs an answer of the database, else the `Batch`"
            }
        };
        self.errors.at(Page::Signature, &second.written, text);
    }

    fn store(&mut self, parameter: &Parameter, store: Option<&Type>) {
        let Some(store) = store else {
            // How it is held is told elsewhere, with the store.
            if parameter.held == Held::Exclusively {
                let text = format!("name the store: `&mut {}<'_, Db>`", parameter.kind.handle());
                self.errors.at(Page::Signature, &parameter.written, text);
            }
            return;
        };
        match &self.store {
            None => self.store = Some(store.clone()),
            Some(first) if alike(first, store) => {}
            Some(first) => {
                let text = format!(
                    "all phases of a request commit to one store, and an earlier one says `{0}`: \
                     write `{1}<'_, {0}>`",
                    type_text(first),
                    parameter.kind.handle()
                );
                self.errors.at(Page::Signature, store, text);
            }
        }
    }

    fn foreign(&mut self, phase: &Phase) {
        let name = &phase.function.name;
        let mut calls = 0;
        for parameter in &phase.function.parameters {
            match &parameter.kind {
                ParameterKind::Call => calls += 1,
                ParameterKind::Tx(_) => {
                    let text = "a foreign phase has no transaction: it would hold a connection and \
                        locks while the other side answers. Return what you want to store, and let a \
                        local phase behind it write that";
                    self.errors.at(Page::Signature, &parameter.written, text);
                }
                ParameterKind::Batch(_) => {
                    let text = "a foreign phase makes its call and writes nothing: return what you \
                        want to store, and let a local phase behind it add the statements";
                    self.errors.at(Page::Signature, &parameter.written, text);
                }
                _ => {}
            }
        }
        if calls != 1 && !phase.function.hides_its_handle() {
            let text = format!(
                "`{name}` is a foreign phase and takes its call, once: `call: ForeignCall`; if it \
                 makes no call, write `#[phase]`"
            );
            self.errors.at(Page::Signature, name, text);
        }
        let reconciled = self.request.reconciles.iter().any(|function| function.settles == *name);
        if let Some(foreign) = &phase.options.foreign
            && matches!(foreign.effect, Effect::AtMostOnce)
            && !reconciled
        {
            let text = format!(
                "an at_most_once call that is interrupted leaves the outcome unknown, so a \
                 function must find it out: add `#[reconcile({name})] async fn {name}_or_not(&self, \
                 key: &DerivedKey) -> PhaseResult<Reconciled<{}>>`",
                output_of(phase)
            );
            self.errors.at(Page::EffectClasses, &foreign.class, text);
        }
    }

    fn reconciles(&mut self) -> Vec<(usize, Vec<Argument>)> {
        let request = self.request;
        let mut all: Vec<(usize, Vec<Argument>)> = Vec::new();
        for reconcile in &request.reconciles {
            self.function(&reconcile.function, Role::Reconcile);
            let Some(index) = self.settled_phase(reconcile) else { continue };
            if all.iter().any(|(earlier, _)| *earlier == index) {
                let text = format!(
                    "`{}` has a reconcile function already: remove one of the two",
                    reconcile.settles
                );
                self.errors.at(Page::Reconcile, &reconcile.settles, text);
            }
            self.settles(reconcile, &request.phases[index]);
            all.push((index, self.arguments(&reconcile.function, index, Role::Reconcile)));
        }
        all
    }

    fn settled_phase(&mut self, reconcile: &Reconcile) -> Option<usize> {
        let settles = &reconcile.settles;
        let found = self.request.phases.iter().position(|phase| phase.function.name == *settles);
        match found {
            None => {
                let text = format!(
                    "there is no phase `{settles}`: name the foreign phase that this settles"
                );
                self.errors.at(Page::Reconcile, settles, text);
            }
            Some(index) if self.request.phases[index].options.foreign.is_none() => {
                let text = format!(
                    "`{settles}` is a local phase, whose commit is never in doubt: name a foreign \
                     phase, or remove this function"
                );
                self.errors.at(Page::Reconcile, settles, text);
                return None;
            }
            Some(_) => {}
        }
        found
    }

    fn settles(&mut self, reconcile: &Reconcile, phase: &Phase) {
        let returns = &reconcile.function.returns;
        let matches = match (&returns.output, &phase.function.returns.output) {
            (Some(found), Some(output)) => {
                returns.is_wrapped_in("Reconciled") && alike(found, output)
            }
            (_, None) => true,
            (None, _) => false,
        };
        if !matches {
            let text = format!(
                "a reconcile function vouches for the phase's output: return \
                 `PhaseResult<Reconciled<{}>>`",
                output_of(phase)
            );
            self.errors.at(Page::Reconcile, &returns.written, text);
        }
    }
}

/// What a function is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Phase,
    Reconcile,
}

impl Role {
    fn text(self) -> &'static str {
        match self {
            Self::Phase => "a phase",
            Self::Reconcile => "a reconcile function",
        }
    }

    fn page(self) -> Page {
        match self {
            Self::Phase => Page::Signature,
            Self::Reconcile => Page::Reconcile,
        }
    }
}

/// The output of a phase as text, or dots where it has none (which is another mistake).
fn output_of(phase: &Phase) -> String {
    phase.function.returns.output.as_ref().map_or("..".to_owned(), type_text)
}
