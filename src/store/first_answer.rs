//! [`first_answer`]: how one thing is asked for on two connections, of which the second may not be needed.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::timeout;

use super::StoreError;

/// How long the first is alone. Half of what a request waits for a read of the pauses: the other half is the second's.
const ALONE_FOR: Duration = Duration::from_secs(1);

/// The answer that comes first. The second begins when the first has failed, or has no answer by [`ALONE_FOR`]: its
/// connection may be dead, in use for long, or driven by a runtime that is blocked. The one that has no answer yet is
/// dropped.
pub(super) async fn first_answer<R>(
    first: impl Future<Output = Result<R, StoreError>>,
    second: impl Future<Output = Result<R, StoreError>>,
) -> Result<R, StoreError> {
    let mut first = pin!(first);
    let second = pin!(second);
    match timeout(ALONE_FOR, &mut first).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(_)) => return second.await,
        Err(_) => {}
    }
    match select(first, second).await {
        Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
        Either::Left((Err(_), second)) => second.await,
        Either::Right((Err(_), first)) => first.await,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn no_connection() -> StoreError {
        StoreError::NoConnection("the server takes no more".to_owned())
    }

    async fn after<T>(seconds: u32, answer: T) -> T {
        sleep(SECOND * seconds).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn g17_the_second_asks_when_the_first_has_failed_or_is_silent() {
        let began = Instant::now();
        let answer = first_answer(ready(Ok(1)), pending()).await;
        assert_eq!(answer.unwrap(), 1);
        let answer = first_answer(ready(Err(no_connection())), ready(Ok(2))).await;
        assert_eq!((answer.unwrap(), began.elapsed()), (2, Duration::ZERO));
        let answer = first_answer(pending(), after(2, Ok(2))).await;
        assert_eq!(answer.unwrap(), 2);
        assert_eq!(began.elapsed().as_secs(), 3, "a second of the first, and two of the second");
    }

    #[tokio::test(start_paused = true)]
    async fn g17_a_failure_of_one_does_not_end_the_other() {
        let answer = first_answer(after(3, Ok(1)), after(1, Err(no_connection()))).await;
        assert_eq!(answer.unwrap(), 1);
        let answer = first_answer(after(2, Err(no_connection())), after(3, Ok(2))).await;
        assert_eq!(answer.unwrap(), 2);
        let (first, second) = (after(2, Err(no_connection())), after(3, Err(no_connection())));
        assert!(first_answer::<u8>(first, second).await.is_err());
    }
}
