// A process that uses the official Node.js SDK and nothing of ours. Commands come as JSON lines on stdin, what happens
// goes as JSON lines to stdout; the SDK's log goes to stderr. The first command makes the client:
//
//   {"do": "producer", "endpoint", "topics", "decide"}   decide: answer checks (odd numbers are committed)
//   {"do": "simple", "endpoint", "group", "topic", "filter"}      filter: tags, or "SQL expression"
//   {"do": "push", "endpoint", "group", "topic", "filter", "fail"}    fail: never, first (once each), always
//
// then, of a producer: send, transact, recall; of a simple consumer: take, nack; of all: stop. Every answer has "done".
'use strict';

const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const say = fields => process.stdout.write(JSON.stringify(fields) + '\n');
const quiet = () => {};
const told = (...words) => console.error(...words);
const logger = { debug: quiet, info: quiet, warn: told, error: told };
const receipts = new Map();
let client;

const { PEER_ACCESS_KEY: accessKey, PEER_SECRET_KEY: accessSecret } = process.env; // keys are no business of arguments
const namespace = process.env.PEER_NAMESPACE || '';
const credentials = accessKey ? { sessionCredentials: { accessKey, accessSecret } } : {};

function wanted(filter) {
  if (filter.startsWith('SQL ')) return new FilterExpression(filter.slice(4), FilterType.SQL);
  return new FilterExpression(filter);
}

function told_of(message) {
  return {
    got: Number(message.properties.get('number')),
    id: message.messageId,
    tag: message.tag,
    keys: message.keys,
    size: message.body.length,
    body: message.body.length < 100 ? message.body.toString() : '',
    attempt: message.deliveryAttempt,
    group: message.messageGroup,
    priority: message.priority,
    from: message.endpoints?.facade,
    corrupted: message.corrupted === true,
    at_ms: Date.now(),
  };
}

function made(command, number) {
  const body = command.size ? Buffer.alloc(command.size, 'x') : Buffer.from(`body-${number}`);
  const message = {
    topic: command.topic,
    body,
    tag: number % 2 ? 'odd' : 'even',
    keys: [ `key-${number}` ],
    properties: new Map([[ 'number', String(number) ]]),
  };
  if (command.message_groups) message.messageGroup = `group-${number % command.message_groups}`;
  if (command.delay_ms) message.deliveryTimestamp = new Date(Date.now() + command.delay_ms);
  if (command.priorities) message.priority = 1 + number % command.priorities; // the SDK takes 0 for none
  return message;
}

const checker = {
  async check(message) {
    const number = Number(message.properties.get('number'));
    say({ asked: number, body: message.body.toString() });
    return number % 2 ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
  },
};

function listener(fail) {
  const failed = new Set();
  return {
    async consume(message) {
      const fields = told_of(message);
      if (fail === 'always' || (fail === 'first' && !failed.has(fields.got))) {
        failed.add(fields.got);
        say({ ...fields, got: undefined, failed: fields.got });
        return ConsumeResult.FAILURE;
      }
      say(fields);
      return ConsumeResult.SUCCESS;
    },
  };
}

const actions = {
  async producer({ endpoint, topics, decide }) {
    client = new Producer({
      endpoints: endpoint, namespace, logger, ...credentials, topics, checker: decide ? checker : undefined,
    });
    await client.startup();
    return {};
  },

  async simple({ endpoint, group, topic, filter }) {
    client = new SimpleConsumer({
      endpoints: endpoint, namespace, logger, ...credentials, consumerGroup: group, awaitDuration: 2000,
      subscriptions: new Map([[ topic, wanted(filter ?? '*') ]]),
    });
    await client.startup();
    return {};
  },

  async push({ endpoint, group, topic, filter, fail }) {
    client = new PushConsumer({
      endpoints: endpoint, namespace, logger, ...credentials, consumerGroup: group, messageListener: listener(fail),
      subscriptions: new Map([[ topic, wanted(filter ?? '*') ]]),
    });
    await client.startup();
    return {};
  },

  async send(command) {
    for (let number = command.first; number < command.first + command.count; number++) {
      const message = made(command, number);
      const receipt = await client.send(message);
      receipts.set(number, receipt);
      say({ sent: number, id: receipt.messageId, offset: receipt.offset, due_ms: message.deliveryTimestamp?.getTime() });
    }
    return {};
  },

  // Of each three: one committed, one rolled back, one left open.
  async transact(command) {
    for (let number = command.first; number < command.first + command.count; number++) {
      const transaction = client.beginTransaction();
      const receipt = await client.send(made(command, number), transaction);
      say({ sent: number, id: receipt.messageId, transaction: receipt.transactionId });
      if (number % 3 === 0) await transaction.commit();
      if (number % 3 === 1) await transaction.rollback();
    }
    return {};
  },

  async recall({ topic, number }) {
    const { recallHandle, messageId } = receipts.get(number);
    const receipt = await client.recallMessage(topic, recallHandle);
    return { same: receipt.messageId === messageId };
  },

  // Receive and acknowledge until `count` came, or nothing came for `empty` polls.
  async take({ count, empty }) {
    let got = 0;
    for (let without = 0; got < count && without < empty;) {
      const messages = await client.receive(16, 30000);
      without = messages.length ? 0 : without + 1;
      for (const message of messages) {
        say(told_of(message));
        await client.ack(message);
        got++;
      }
    }
    return { got_all: got };
  },

  // Receive one, hide it for `invisible_ms`, receive it again, acknowledge.
  async nack({ invisible_ms }) {
    const next = async () => {
      for (let polls = 0; polls < 20; polls++) {
        const [ message ] = await client.receive(1, 30000);
        if (message) return message;
      }
      throw new Error('nothing received');
    };
    const message = await next();
    say(told_of(message));
    await client.changeInvisibleDuration(message, invisible_ms);
    const again = await next();
    say(told_of(again));
    await client.ack(again);
    return {};
  },

  async stop() {
    const begun = Date.now();
    await client.shutdown();
    return { shutdown_ms: Date.now() - begun };
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      say({ done: command.do, ...await actions[command.do](command) });
    } catch (error) {
      say({ done: command.do, error: [error, error.cause, error.cause?.cause].filter(Boolean).map(String).join(' <- '), code: error.code });
    }
    if (command.do === 'stop') break;
  }
  process.stdin.destroy(); // after a clean shutdown nothing keeps the process alive
  if (client instanceof PushConsumer) process.exit(0); // but its services' own file logger, which nobody can close
}

main();
