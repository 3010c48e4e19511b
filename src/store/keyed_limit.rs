//! [`KeyedLimit`]: a semaphore for each key, within this process.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::key::{IdempotencyKey, Scope};
use crate::lock::lock;

/// The right to create a key, of one request in this process at a time.
pub(super) type KeyPermit = KeyedPermit<(Scope, IdempotencyKey)>;

/// The keys of which there are permits, or tasks that wait for one.
type Queues<K> = Arc<Mutex<HashMap<Arc<K>, Arc<Semaphore>>>>;

/// At most so many at a time for each key, in the order in which they came. Remembers a key for as long
/// as a task holds or waits for a permit of it.
pub(super) struct KeyedLimit<K: Eq + Hash + Clone> {
    limit: usize,
    queues: Queues<K>,
}

/// A permit, or a place in the queue for one. Dropping it lets the next waiter in.
pub(super) struct KeyedPermit<K: Eq + Hash + Clone> {
    key: Arc<K>,
    queues: Queues<K>,
    queue: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash + Clone> KeyedLimit<K> {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), queues: Arc::default() }
    }

    /// Waits for a permit; `None` where there is none by `until`.
    pub(super) async fn take(&self, key: &K, until: Instant) -> Option<KeyedPermit<K>> {
        let (key, queue) = self.queue_of(key);
        let queues = self.queues.clone();
        let mut own = KeyedPermit { key, queues, queue: Some(queue.clone()), permit: None };
        own.permit = Some(acquired(queue, until).await?);
        Some(own)
    }

    fn queue_of(&self, key: &K) -> (Arc<K>, Arc<Semaphore>) {
        let mut queues = lock(&self.queues);
        if let Some((key, queue)) = queues.get_key_value(key) {
            return (key.clone(), queue.clone());
        }
        let (key, queue) = (Arc::new(key.clone()), Arc::new(Semaphore::new(self.limit)));
        queues.insert(key.clone(), queue.clone());
        (key, queue)
    }
}

/// A permit of `semaphore`; `None` where there is none by `until`. One that is free takes no timer.
pub(super) async fn acquired(
    semaphore: Arc<Semaphore>,
    until: Instant,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(permit) = semaphore.clone().try_acquire_owned() {
        return Some(permit);
    }
    tokio::time::timeout_at(until.into(), semaphore.acquire_owned()).await.ok()?.ok()
}

impl<K: Eq + Hash + Clone> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        self.permit = None;
        let mut queues = lock(&self.queues);
        self.queue = None;
        // Only under the lock does the map hand out another reference.
        if queues.get(&*self.key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&*self.key);
        }
    }
}

impl<K: Eq + Hash + Clone> fmt::Debug for KeyedLimit<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimit").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn so_many_at_a_time_and_a_key_is_forgotten() {
        let limit = KeyedLimit::new(2);
        let now = Instant::now;
        let (one, two) = (limit.take(&1, now()).await.unwrap(), limit.take(&1, now()).await);
        assert!(two.is_some());
        assert!(limit.take(&1, now()).await.is_none(), "a third");
        assert!(limit.take(&2, now()).await.is_some(), "another key");
        let waits = limit.take(&1, now() + Duration::from_secs(60));
        let (third, ()) = tokio::join!(waits, async { drop(one) });
        assert!(third.is_some());
        assert_eq!(lock(&limit.queues).len(), 1);
        drop((two, third));
        assert_eq!(lock(&limit.queues).len(), 0);
        let cancelled = limit.take(&3, now() + Duration::from_secs(60));
        let held = limit.take(&3, now()).await;
        tokio::select! { biased; _ = cancelled => {}, () = std::future::ready(()) => {} }
        drop(held);
        assert_eq!(lock(&limit.queues).len(), 0);
    }
}
