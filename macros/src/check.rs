//! Is it a request? Each mistake is an error on the user's own tokens that says what to write
//! instead; all of them are told at once.

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{LitStr, Result, Type};

use crate::options::Effect;
use crate::parse::{
    Errors, Function, Parameter, ParameterKind, Phase, Reconcile, Request, is_called,
};

/// Longest name of a phase: the width of the column for recovery points.
const MAX_PHASE_NAME: usize = 50;
const RESERVED: [&str; 2] = ["started", "finished"];

/// A request in which everything that is asked for can be given.
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

/// What a parameter is given.
#[derive(Clone)]
pub(crate) enum Argument {
    Tx,
    Call,
    Context,
    Key,
    App,
    /// The output of the phase with this index, of this type.
    Output(usize, Box<Type>),
}

pub(crate) fn check(request: &Request) -> Result<Checked> {
    let mut checking = Checking { request, errors: Errors::default(), store: None, app: None };
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
    fn names(&mut self) {
        if self.request.phases.is_empty() {
            let text = "a request needs at least one phase: mark a method with #[phase]";
            self.errors.at(self.request.item.self_ty.span(), text);
        }
        let mut seen: Vec<String> = Vec::new();
        for phase in &self.request.phases {
            let name = phase.function.name.to_string();
            let span = phase.function.name.span();
            let length = name.chars().count();
            if RESERVED.contains(&name.as_str()) {
                let text = format!(
                    "`{name}` is the recovery point of a request that has not begun or is done: \
                     name the phase after what it has achieved, `ride_created` say"
                );
                self.errors.at(span, text);
            } else if length > MAX_PHASE_NAME {
                let text = format!(
                    "a phase's name has at most {MAX_PHASE_NAME} characters, the width of the \
                     column for recovery points; this has {length}"
                );
                self.errors.at(span, text);
            } else if seen.contains(&name) {
                let text = format!(
                    "there is a phase `{name}` already: each recovery point needs its own name"
                );
                self.errors.at(span, text);
            }
            seen.push(name);
        }
        let mut earlier: Vec<String> = Vec::new();
        for was in self.request.phases.iter().flat_map(|phase| &phase.options.was) {
            let name = was.value();
            if seen.contains(&name) || earlier.contains(&name) {
                let text = format!(
                    "`{name}` is the name of another phase too: a stored row could mean either"
                );
                self.errors.at(was.span(), text);
            }
            self.old_name(was);
            earlier.push(name);
        }
    }

    fn old_name(&mut self, was: &LitStr) {
        let name = was.value();
        let length = name.chars().count();
        if length == 0 || length > MAX_PHASE_NAME || RESERVED.contains(&name.as_str()) {
            let text = format!(
                "a phase was never called that: a name has 1 to {MAX_PHASE_NAME} characters and is not `started` or `finished`"
            );
            self.errors.at(was.span(), text);
        }
    }

    fn phases(&mut self) -> Vec<Vec<Argument>> {
        let request = self.request;
        let last = request.phases.len().saturating_sub(1);
        let mut all = Vec::new();
        for (index, phase) in request.phases.iter().enumerate() {
            self.function(&phase.function, "a phase");
            self.returns(phase, index == last);
            match &phase.options.foreign {
                None => self.local(phase),
                Some(_) => self.foreign(phase),
            }
            all.push(self.arguments(&phase.function, index));
        }
        all
    }

    fn function(&mut self, function: &Function, what: &str) {
        let name = &function.name;
        if !function.is_async {
            self.errors
                .at(name.span(), format!("{what} is an `async fn`: write `async fn {name}`"));
        }
        if let Some(span) = function.bad_receiver {
            let text = format!("{what} takes `&self` first: each attempt sees the same request");
            self.errors.at(span, text);
        }
        if let Some(span) = function.generics {
            let text =
                format!("{what} has no generic parameters of its own: put them on the impl block");
            self.errors.at(span, text);
        }
    }

    fn returns(&mut self, phase: &Phase, last: bool) {
        let returns = &phase.function.returns;
        let name = &phase.function.name;
        let Some(_) = &returns.output else {
            let wanted = if last { "Reply" } else { "Output" };
            self.errors.at(returns.span, format!("a phase returns `PhaseResult<{wanted}>`"));
            return;
        };
        if returns.is_wrapped_in("Reconciled") {
            self.errors.at(returns.span, "only a #[reconcile(..)] function returns `Reconciled`");
        } else if last && !(returns.is_reply() && returns.wrapper.is_none()) {
            let text = format!(
                "`{name}` is the last phase, and the last phase answers: return `PhaseResult<Reply>`, \
                 or put the phase that answers behind it"
            );
            self.errors.at(returns.span, text);
        } else if !last && returns.is_reply() {
            let text = format!(
                "`{name}` is not the last phase: return its output, `PhaseResult<Flow<Output>>` if it \
                 may finish early, or put it last"
            );
            self.errors.at(returns.span, text);
        }
    }

    fn local(&mut self, phase: &Phase) {
        let name = &phase.function.name;
        let mut transactions = 0;
        for parameter in &phase.function.parameters {
            match &parameter.kind {
                ParameterKind::Tx(store) => {
                    transactions += 1;
                    self.store(parameter, store.as_deref());
                }
                ParameterKind::Call => {
                    let text = "a local phase makes no foreign call: a crash before its commit would \
                        repeat it. Move the call to a phase of its own, \
                        `#[phase(foreign(idempotent))]`";
                    self.errors.at(parameter.span(), text);
                }
                _ => {}
            }
        }
        if transactions != 1 {
            let text = format!(
                "`{name}` is a local phase and takes its transaction once: add `tx: &mut Tx<'_, Db>`; \
                 for a phase that makes a foreign call write `#[phase(foreign(..))]`"
            );
            self.errors.at(name.span(), text);
        }
    }

    fn store(&mut self, parameter: &Parameter, store: Option<&Type>) {
        let Some(store) = store else {
            self.errors.at(parameter.span(), "name the store: `&mut Tx<'_, Db>`");
            return;
        };
        match &self.store {
            None => self.store = Some(store.clone()),
            Some(first) if same(first, store) => {}
            Some(first) => {
                let text = format!(
                    "all phases of a request commit to one store, and an earlier phase says `{}`",
                    first.to_token_stream()
                );
                self.errors.at(store.span(), text);
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
                    self.errors.at(parameter.span(), text);
                }
                _ => {}
            }
        }
        if calls != 1 {
            let text = format!(
                "`{name}` is a foreign phase and takes its call once: add `call: ForeignCall`"
            );
            self.errors.at(name.span(), text);
        }
        let reconciled = self.request.reconciles.iter().any(|function| function.settles == *name);
        if let Some(foreign) = &phase.options.foreign
            && matches!(foreign.effect, Effect::AtMostOnce)
            && !reconciled
        {
            let text = format!(
                "an at_most_once call that is interrupted leaves the outcome unknown, so somebody \
                 must be able to find out: add `#[reconcile({name})] async fn …(&self, ..) -> \
                 PhaseResult<Reconciled<..>>`"
            );
            self.errors.at(foreign.keyword.span(), text);
        }
    }

    fn reconciles(&mut self) -> Vec<(usize, Vec<Argument>)> {
        let request = self.request;
        let mut all: Vec<(usize, Vec<Argument>)> = Vec::new();
        for reconcile in &request.reconciles {
            self.function(&reconcile.function, "a reconcile function");
            let Some(index) = self.settled_phase(reconcile) else { continue };
            if all.iter().any(|(earlier, _)| *earlier == index) {
                let text = format!("`{}` has a reconcile function already", reconcile.settles);
                self.errors.at(reconcile.settles.span(), text);
            }
            self.settles(reconcile, &request.phases[index]);
            all.push((index, self.arguments(&reconcile.function, index)));
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
                self.errors.at(settles.span(), text);
            }
            Some(index) if self.request.phases[index].options.foreign.is_none() => {
                let text = format!(
                    "`{settles}` is a local phase: it commits or it does not, and there is nothing to settle"
                );
                self.errors.at(settles.span(), text);
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
                returns.is_wrapped_in("Reconciled") && same(found, output)
            }
            (_, None) => true,
            (None, _) => false,
        };
        if !matches {
            let output = phase.function.returns.output.to_token_stream();
            let text = format!(
                "a reconcile function vouches for the phase's output: return `PhaseResult<Reconciled<{output}>>`"
            );
            self.errors.at(returns.span, text);
        }
    }

    /// What each parameter of a function at phase `index` is given.
    fn arguments(&mut self, function: &Function, index: usize) -> Vec<Argument> {
        let is_reconcile = function.returns.is_wrapped_in("Reconciled");
        let mut arguments = Vec::new();
        for parameter in &function.parameters {
            let argument = match &parameter.kind {
                ParameterKind::Tx(_) if is_reconcile => {
                    let text = "a reconcile function asks the other side and has no transaction: return what it found";
                    self.errors.at(parameter.span(), text);
                    None
                }
                ParameterKind::Call if is_reconcile => {
                    let text = "a reconcile function must not call again: ask the other side what happened, by `key: &DerivedKey`";
                    self.errors.at(parameter.span(), text);
                    None
                }
                ParameterKind::Tx(_) => Some(Argument::Tx),
                ParameterKind::Call => Some(Argument::Call),
                ParameterKind::Context => Some(Argument::Context),
                ParameterKind::Key if is_reconcile => Some(Argument::Key),
                ParameterKind::Key => {
                    let text =
                        "a phase is given the derived key by its call: `call.make(async |key| ..)`";
                    self.errors.at(parameter.span(), text);
                    None
                }
                ParameterKind::Reference(ty) => self.reference(parameter, ty, index),
                ParameterKind::Other => {
                    let text = "a phase is given its transaction (`&mut Tx<'_, Db>`) or its call \
                        (`ForeignCall`), and by shared reference outputs of earlier phases \
                        (`ride: &Ride`), `&App` and `&RequestContext`";
                    self.errors.at(parameter.span(), text);
                    None
                }
            };
            arguments.extend(argument);
        }
        arguments
    }

    fn reference(&mut self, parameter: &Parameter, ty: &Type, index: usize) -> Option<Argument> {
        let request = self.request;
        let is_app = match &request.options.app {
            Some(app) => same(app, ty),
            None => is_called(ty, "App"),
        };
        if is_app {
            self.app = Some(ty.clone());
            return Some(Argument::App);
        }
        let returns_it = |phase: &Phase| {
            phase.function.returns.output.as_ref().is_some_and(|output| same(output, ty))
        };
        let matching: Vec<usize> =
            (0..index).filter(|earlier| returns_it(&request.phases[*earlier])).collect();
        let named = |at: &&usize| {
            parameter.name.as_ref().is_some_and(|name| request.phases[**at].function.name == *name)
        };
        let chosen = match matching.as_slice() {
            [only] => Some(*only),
            several => several.iter().find(named).copied(),
        };
        if chosen.is_none() {
            self.not_found(parameter, ty, index, &matching);
        }
        chosen.map(|chosen| Argument::Output(chosen, Box::new(ty.clone())))
    }

    fn not_found(&mut self, parameter: &Parameter, ty: &Type, index: usize, matching: &[usize]) {
        let request = self.request;
        let name_of = |at: usize| request.phases[at].function.name.to_string();
        let wanted = ty.to_token_stream();
        let later = (index..request.phases.len()).find(|at| {
            request.phases[*at]
                .function
                .returns
                .output
                .as_ref()
                .is_some_and(|output| same(output, ty))
        });
        let text = if !matching.is_empty() {
            let names: Vec<String> =
                matching.iter().map(|at| format!("`{}`", name_of(*at))).collect();
            format!(
                "several earlier phases return `{wanted}`: name the parameter after the one you mean, {}",
                names.join(" or ")
            )
        } else if let Some(later) = later {
            let by = name_of(later);
            if later == index {
                format!(
                    "`{wanted}` is the output of `{by}` itself: a phase is given outputs of earlier phases"
                )
            } else {
                format!(
                    "`{wanted}` is the output of `{by}`, which runs later: move `{by}` before this phase"
                )
            }
        } else {
            let outputs: Vec<String> = (0..index)
                .filter_map(|at| {
                    let output = request.phases[at].function.returns.output.as_ref()?;
                    Some(format!("`&{}` of `{}`", output.to_token_stream(), name_of(at)))
                })
                .collect();
            let outputs = match outputs.is_empty() {
                true => "there is none before this phase".to_owned(),
                false => format!("there are {}", outputs.join(", ")),
            };
            format!(
                "no earlier phase returns `{wanted}`: {outputs}. If it is the application's shared \
                 state, say `#[atomic_phases(.., app = {wanted})]`"
            )
        };
        self.errors.at(parameter.span(), text);
    }
}

/// Whether two types are written alike.
fn same(one: &Type, other: &Type) -> bool {
    one.to_token_stream().to_string() == other.to_token_stream().to_string()
}
