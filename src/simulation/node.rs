//! [`Node`]: a process that can stand still and die.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tokio::task::{AbortHandle, JoinHandle};

use crate::lock::lock;

/// A process of a simulation: a set of tasks that stand still and die together.
///
/// What a task of the node spawns through the engine belongs to the node, too. A task that a phase spawns
/// by `tokio::spawn` belongs to none.
#[derive(Clone)]
pub struct Node(Arc<State>);

struct State {
    name: String,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    frozen: bool,
    dead: bool,
    /// Of tasks that were to continue while the node stood still.
    waiting: Vec<Waker>,
    tasks: Vec<AbortHandle>,
}

thread_local! {
    /// Whose task is being polled.
    static CURRENT: RefCell<Option<Node>> = const { RefCell::new(None) };
}

impl Node {
    /// A node without tasks.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(Arc::new(State { name: name.into(), life: Mutex::default() }))
    }

    /// The node whose task runs, if it is one's.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with(|current| current.borrow().clone())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Runs a future on the node. On a dead one, it never runs.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task = tokio::spawn(OfNode { node: self.clone(), future: Box::pin(future) });
        let mut life = lock(&self.0.life);
        match life.dead {
            true => task.abort(),
            false => {
                life.tasks.retain(|task| !task.is_finished());
                life.tasks.push(task.abort_handle());
            }
        }
        task
    }

    /// Stands still, as by `SIGSTOP` or a pause of the virtual machine: none of its tasks continues, while
    /// time does.
    pub fn freeze(&self) {
        lock(&self.0.life).frozen = true;
    }

    /// The end of [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        let mut life = lock(&self.0.life);
        life.frozen = false;
        let waiting = std::mem::take(&mut life.waiting);
        drop(life);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Dies, as by `kill -9`: its tasks are dropped where they are, and its connections end.
    pub fn kill(&self) {
        let mut life = lock(&self.0.life);
        life.dead = true;
        let tasks = std::mem::take(&mut life.tasks);
        drop(life);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Whether its tasks continue; else the task is woken when they do.
    fn goes_on(&self, context: &Context<'_>) -> bool {
        let mut life = lock(&self.0.life);
        if life.frozen && !life.dead {
            life.waiting.push(context.waker().clone());
        }
        !life.frozen && !life.dead
    }
}

/// A task of a node.
struct OfNode<F> {
    node: Node,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for OfNode<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if !self.node.goes_on(context) {
            return Poll::Pending;
        }
        let _on = On::enter(&self.node);
        self.future.as_mut().poll(context)
    }
}

/// While it lives, what is spawned belongs to the node.
struct On(Option<Node>);

impl On {
    fn enter(node: &Node) -> Self {
        Self(CURRENT.with(|current| current.borrow_mut().replace(node.clone())))
    }
}

impl Drop for On {
    fn drop(&mut self) {
        CURRENT.with(|current| *current.borrow_mut() = self.0.take());
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Node").field(&self.0.name).finish()
    }
}
