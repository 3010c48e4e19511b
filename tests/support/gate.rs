//! A gate in a phase or a call: who reaches it waits until the test lets them go on. So the test decides what happens
//! first, however slow the machine is.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Where to wait for the test.
#[derive(Clone)]
pub struct Gate(mpsc::UnboundedSender<Waiting>);

/// Waits at a gate until the test releases it (or drops this, which releases it, too).
pub type Waiting = oneshot::Sender<()>;

/// What waits at a gate, one after the other. Once this is dropped, the gate is open.
pub struct Calls(mpsc::UnboundedReceiver<Waiting>);

/// A gate that is closed, and what arrives at it.
pub fn gate() -> (Gate, Calls) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Gate(sender), Calls(receiver))
}

impl Gate {
    pub async fn pass(&self) {
        let (go, gone) = oneshot::channel();
        if self.0.send(go).is_ok() {
            let _ = gone.await;
        }
    }
}

impl Calls {
    /// The next call. If none comes, the test fails and says where it waited.
    #[track_caller]
    pub fn recv(&mut self) -> impl Future<Output = Option<Waiting>> {
        let place = std::panic::Location::caller();
        async move {
            let next = tokio::time::timeout(Duration::from_secs(120), self.0.recv()).await;
            next.unwrap_or_else(|_| panic!("no call comes: {place}"))
        }
    }

    pub fn try_recv(&mut self) -> Result<Waiting, mpsc::error::TryRecvError> {
        self.0.try_recv()
    }
}
