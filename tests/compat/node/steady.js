// A process that uses the official Node.js SDK and nothing of ours: `node steady.js steady ENDPOINT TOPIC GROUP`.
//
// It sends one numbered message after the other and takes them with a simple consumer, and goes on after every error,
// until a line comes on stdin. What happens goes as JSON lines to stdout; the SDK's log goes to stderr.
'use strict';

const { FilterExpression, Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const PAUSE_MS = 100;
const say = fields => process.stdout.write(JSON.stringify(fields) + '\n');
const pause = () => new Promise(resolve => setTimeout(resolve, PAUSE_MS));
const log = (...words) => console.error(...words.map(String)); // without the stacks: a test counts its lines
const logger = { debug: () => {}, info: log, warn: log, error: log };
const [ , , , endpoints, topic, consumerGroup ] = process.argv;
const stop = new Promise(resolve => process.stdin.once('data', resolve));
let stopped = false;
stop.then(() => { stopped = true; });

async function send() {
  const client = new Producer({ endpoints, namespace: '', logger, topics: [ topic ] });
  await client.startup();
  for (let number = 0; !stopped; number++, await pause()) {
    try {
      await client.send({ topic, body: Buffer.from(String(number)) });
      say({ sent: number });
    } catch {
      say({ refused: number });
    }
  }
  await client.shutdown();
}

async function take() {
  const subscriptions = new Map([[ topic, new FilterExpression('*') ]]);
  const client = new SimpleConsumer({ endpoints, namespace: '', logger, consumerGroup, awaitDuration: 2000, subscriptions });
  await client.startup();
  while (!stopped) {
    try {
      for (const message of await client.receive(16, 15000)) {
        say({ got: Number(message.body.toString()) });
        await client.ack(message).catch(() => say({ unacked: Number(message.body.toString()) }));
      }
    } catch {
      await pause();
    }
  }
  await client.shutdown();
}

Promise.all([ send(), take() ]).then(() => {
  say({ done: true });
  process.exit(0);
});
