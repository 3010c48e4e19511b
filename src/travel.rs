//! [`Traveller`]: a task that another thread may poll for a while.
//!
//! An embedded database lives on a thread of its own. A transaction that hands each of its statements to that
//! thread, and waits for each answer, wakes a thread twice for each; so the task itself goes there instead, with
//! everything that it has under way, and comes back when it has to wait for something else. A task is polled by
//! one thread at a time. Spawned tasks, timers and sockets remain those of its runtime.

use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread that polls tasks of others.
pub(crate) trait Host: Send + Sync {
    /// Polls the guest until it is ready: it goes home by itself. A host that is gone drops it.
    fn receive(&self, guest: Guest);
}

/// A task on a visit. Ready, it has gone home, or its owner has dropped it.
pub(crate) type Guest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The host's thread has ended, and the task with it.
#[derive(Debug)]
pub(crate) struct Lost;

thread_local! {
    /// That of the task that this thread polls, if it may travel.
    static JOURNEY: RefCell<Option<Journey>> = const { RefCell::new(None) };
}

struct Journey {
    is_away: bool,
    next: Option<Stop>,
}

/// Where a task goes when it has to wait.
enum Stop {
    Host(Arc<dyn Host>),
    Home,
}

/// Goes to `host`. A task that cannot travel, or is there already, goes on where it is. It goes home when the
/// returned value is dropped, and then only if it has to wait.
pub(crate) async fn to(host: &Arc<dyn Host>) -> Stay {
    let stay = Stay(());
    poll_fn(|_| {
        at(|journey| match journey.is_away {
            true => {
                journey.next = None;
                Poll::Ready(())
            }
            false => {
                journey.next = Some(Stop::Host(host.clone()));
                Poll::Pending
            }
        })
        .unwrap_or(Poll::Ready(()))
    })
    .await;
    stay
}

/// Goes home at once: what follows may keep its thread busy.
pub(crate) async fn home() {
    poll_fn(|_| match at(Journey::go_home) {
        Some(true) => Poll::Pending,
        _ => Poll::Ready(()),
    })
    .await;
}

/// While it lives, the task waits at its host.
#[derive(Debug)]
pub(crate) struct Stay(());

impl Drop for Stay {
    fn drop(&mut self) {
        at(Journey::go_home);
    }
}

impl Journey {
    /// Whether it is away.
    fn go_home(&mut self) -> bool {
        self.next = self.is_away.then_some(Stop::Home);
        self.is_away
    }
}

fn at<R>(ask: impl FnOnce(&mut Journey) -> R) -> Option<R> {
    JOURNEY.with(|journey| journey.borrow_mut().as_mut().map(ask))
}

/// Polls a task that may travel, and says where it goes if it has to wait.
fn polled<T>(
    future: &mut BoxFuture<'static, T>,
    is_away: bool,
    context: &mut Context<'_>,
) -> (Poll<T>, Option<Stop>) {
    let _on = On(JOURNEY.replace(Some(Journey { is_away, next: None })));
    let polled = future.poll_unpin(context);
    (polled, at(|journey| journey.next.take()).flatten())
}

/// A task may poll another within. What was there before is there again afterwards, also behind a panic.
struct On(Option<Journey>);

impl Drop for On {
    fn drop(&mut self) {
        drop(JOURNEY.replace(self.0.take()));
    }
}

/// A task that goes where it asks to go. Dropped while it is on a visit, it is dropped by its host, as soon as
/// that has polled it.
pub(crate) struct Traveller<T>(Whereabouts<T>);

enum Whereabouts<T> {
    Home(BoxFuture<'static, T>),
    Away(oneshot::Receiver<Return<T>>),
}

/// How a task comes back.
enum Return<T> {
    Unfinished(BoxFuture<'static, T>),
    Ended(T),
    Panicked(Box<dyn Any + Send>),
}

impl<T: Send + 'static> Traveller<T> {
    pub(crate) fn new(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Whereabouts::Home(task.boxed()))
    }
}

impl<T: Send + 'static> Future for Traveller<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                Whereabouts::Home(task) => {
                    let host = match polled(task, false, context) {
                        (Poll::Ready(ended), _) => return Poll::Ready(Ok(ended)),
                        (Poll::Pending, Some(Stop::Host(host))) => host,
                        (Poll::Pending, _) => return Poll::Pending,
                    };
                    let (home, returned) = oneshot::channel();
                    if let Whereabouts::Home(task) =
                        replace(&mut self.0, Whereabouts::Away(returned))
                    {
                        let runtime = Handle::try_current().ok();
                        host.receive(Box::pin(Visit {
                            task: Some(task),
                            home: Some(home),
                            runtime,
                        }));
                    }
                }
                Whereabouts::Away(returned) => match ready!(returned.poll_unpin(context)) {
                    Ok(Return::Unfinished(task)) => self.0 = Whereabouts::Home(task),
                    Ok(Return::Ended(ended)) => return Poll::Ready(Ok(ended)),
                    Ok(Return::Panicked(panic)) => resume_unwind(panic),
                    Err(_) => return Poll::Ready(Err(Lost)),
                },
            }
        }
    }
}

/// A task at its host.
struct Visit<T> {
    task: Option<BoxFuture<'static, T>>,
    home: Option<oneshot::Sender<Return<T>>>,
    /// Whose timers, sockets and tasks it uses.
    runtime: Option<Handle>,
}

impl<T> Future for Visit<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let runtime = self.runtime.clone();
        let _entered = runtime.as_ref().map(Handle::enter);
        let Self { task, home, .. } = &mut *self;
        let (Some(visiting), Some(owner)) = (task.as_mut(), home.as_mut()) else {
            return Poll::Ready(());
        };
        if owner.poll_closed(context).is_ready() {
            self.end();
            return Poll::Ready(());
        }
        let polled = catch_unwind(AssertUnwindSafe(|| polled(visiting, true, context)));
        let back = match polled {
            Ok((Poll::Pending, Some(Stop::Home))) => match task.take() {
                Some(task) => Return::Unfinished(task),
                None => return Poll::Ready(()),
            },
            Ok((Poll::Pending, _)) => return Poll::Pending,
            Ok((Poll::Ready(ended), _)) => Return::Ended(ended),
            Err(panic) => Return::Panicked(panic),
        };
        // Before its owner hears of it: what it held is free then.
        self.end();
        if let Some(Err(unwanted)) = self.home.take().map(|home| home.send(back)) {
            dropped(unwanted);
        }
        Poll::Ready(())
    }
}

impl<T> Visit<T> {
    /// Drops what is left of the task, on its runtime.
    fn end(&mut self) {
        let _runtime = self.runtime.as_ref().map(Handle::enter);
        dropped(self.task.take());
    }
}

impl<T> Drop for Visit<T> {
    fn drop(&mut self) {
        self.end();
    }
}

/// What panics while it is dropped must not end the host's thread.
fn dropped(value: impl Sized) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    /// Each guest on a thread of its own.
    struct Threads;

    impl Host for Threads {
        fn receive(&self, guest: Guest) {
            thread::spawn(|| {
                tokio::runtime::Builder::new_current_thread().build().map(|own| own.block_on(guest))
            });
        }
    }

    /// It lets nobody in.
    struct Closed;

    impl Host for Closed {
        fn receive(&self, _: Guest) {}
    }

    fn host(host: impl Host + 'static) -> Arc<dyn Host> {
        Arc::new(host)
    }

    fn here() -> ThreadId {
        thread::current().id()
    }

    #[tokio::test]
    async fn a_task_goes_to_its_host_and_comes_home_and_keeps_its_runtime() {
        let (at_home, host) = (here(), host(Threads));
        let task = async move {
            let stay = to(&host).await;
            let away = here();
            // A timer of the runtime at home.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(here(), away, "it stays where it is while it has to");
            drop(stay);
            assert_eq!(here(), away, "it goes when it has to wait");
            let _stay = to(&host).await;
            assert_eq!(here(), away, "or not at all, if it is wanted there again");
            home().await;
            (away, here())
        };
        let (away, after) = Traveller::new(task).await.unwrap();
        assert!(away != at_home && after == at_home);
    }

    #[tokio::test]
    async fn a_task_that_waits_goes_home_for_it() {
        let (at_home, host) = (here(), host(Threads));
        let task = async move {
            drop(to(&host).await);
            tokio::task::yield_now().await;
            here()
        };
        assert_eq!(Traveller::new(task).await.unwrap(), at_home);
    }

    #[tokio::test]
    async fn a_task_that_cannot_travel_stays() {
        let (at_home, host) = (here(), host(Threads));
        let _stay = to(&host).await;
        home().await;
        assert_eq!(here(), at_home);
    }

    #[tokio::test]
    async fn a_panic_comes_home() {
        let host = host(Threads);
        let panics = async move {
            let _stay = to(&host).await;
            std::panic::resume_unwind(Box::new("as asked for"))
        };
        let panics: Traveller<()> = Traveller::new(panics);
        let panicked = tokio::spawn(panics).await.unwrap_err();
        assert_eq!(panicked.into_panic().downcast_ref::<&str>(), Some(&"as asked for"));
    }

    #[tokio::test]
    async fn what_is_dropped_on_a_visit_is_dropped_by_its_host() {
        let (host, (held, dropped)) = (host(Threads), oneshot::channel::<()>());
        let (arrive, arrived) = oneshot::channel();
        let waits = async move {
            let _held = held;
            let _stay = to(&host).await;
            let _ = arrive.send(());
            std::future::pending::<()>().await;
        };
        let waits = tokio::spawn(Traveller::new(waits));
        arrived.await.unwrap();
        waits.abort();
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    async fn a_host_that_is_gone_is_told_of() {
        let host = host(Closed);
        let lost = Traveller::new(async move { drop(to(&host).await) });
        assert!(matches!(lost.await, Err(Lost)));
    }
}
