"""One request by stripe-python or by urllib3. Prints how it ended, in one line."""

import sys

client, base, key, amount, how = sys.argv[1:]


def stripe_python():
    import stripe

    # As the SDK is by default but for the address: two retries, without a look at Retry-After.
    stripe.api_key = "sk_test"
    stripe.api_base = base
    try:
        charge = stripe.Charge.create(amount=int(amount), currency="usd", how=how, idempotency_key=key)
        return f"charge {charge.id}"
    except stripe.StripeError as error:
        return type(error).__name__


def urllib3_retry():
    import urllib3

    # What its documentation calls for: POST is retried only where it is listed, and so is 409.
    retries = urllib3.Retry(
        total=2,
        backoff_factor=0.1,
        allowed_methods=["POST"],
        status_forcelist=[408, 409, 425, 429, 500, 502, 503, 504],
        raise_on_status=False,
    )
    try:
        answer = urllib3.PoolManager(retries=retries).request_encode_body(
            "POST",
            f"{base}/v1/charges",
            fields={"amount": amount, "how": how},
            encode_multipart=False,
            headers={"Authorization": "Bearer sk_test", "Idempotency-Key": key},
        )
    except urllib3.exceptions.HTTPError as error:
        return type(error).__name__
    if answer.status < 400:
        return f"charge {answer.json()['id']}"
    return f"status {answer.status}"


print({"stripe-python": stripe_python, "urllib3": urllib3_retry}[client]())
