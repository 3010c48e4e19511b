// One request by stripe-node, as it is by default but for the address. Prints how it ended, in one line.
import Stripe from "stripe";

const [base, key, amount, how] = process.argv.slice(2);
const { protocol, hostname, port } = new URL(base);
const stripe = new Stripe("sk_test", { protocol: protocol.slice(0, -1), host: hostname, port });
try {
  const params = { amount: Number(amount), currency: "usd", how };
  const charge = await stripe.charges.create(params, { idempotencyKey: key });
  console.log(charge.id ? `charge ${charge.id}` : "success, and no charge");
} catch (error) {
  console.log(error.type);
}
// It would wait for the connections of the retried attempts.
process.exit();
