import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * A process that uses the official Java SDK and nothing of ours. It holds many clients, each with a name, because a
 * Java process takes a second to start. Commands come as JSON lines on stdin, what happens goes as JSON lines to
 * stdout with the client's name; the SDK's log goes to a file. Three commands make a client:
 *
 * <pre>
 * {"do": "producer", "client", "endpoint", "topic", "decide"}        decide: answer checks (odd numbers are committed)
 * {"do": "simple", "client", "endpoint", "group", "topic", "filter"}     filter: tags, or "SQL expression"
 * {"do": "push", "client", "endpoint", "group", "topic", "filter", "fail", "work_ms"}
 *     fail: never, first (once each), always; work_ms: how long it works on each message, and says then that it "worked"
 * </pre>
 *
 * each with "tls" (false if it is not there; the SDK's own default is true) and "access_key", "secret_key" if the calls
 * are to be signed. Then, of a producer: send, transact, recall, stream; of a simple consumer: take, nack, drain; of
 * all: close. A stream sends and a drain takes, in a thread of its own and whatever fails, until the client is told to
 * rest; a stream with a "stream", its name, repeats each message until it is answered with OK, and with "ordered" it is
 * a message group. Every answer has "done".
 */
public final class Peer {
    private static final Gson GSON = new Gson();
    private static final ClientServiceProvider SDK = ClientServiceProvider.loadService();
    private static final Duration INVISIBLE = Duration.ofSeconds(30);
    private static final Duration PATIENCE = Duration.ofSeconds(10); // the SDK's 3 s are short on a loaded machine
    private static final long PAUSE_MS = 50;
    private static final Map<String, Peer> PEERS = new HashMap<>();

    private final String name;
    private Closeable client;
    private final Map<Integer, SendReceipt> receipts = new HashMap<>();
    private Thread worker;
    private volatile boolean resting;

    private Peer(String name) {
        this.name = name;
    }

    /** A command's fields; what is missing has a default. */
    private record Command(Map<String, Object> fields) {
        String text(String key) {
            return (String) fields.getOrDefault(key, "");
        }

        int number(String key) {
            return ((Number) fields.getOrDefault(key, 0)).intValue();
        }

        boolean flag(String key) {
            return Boolean.TRUE.equals(fields.get(key));
        }
    }

    private static Map<String, Object> fields(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            made.put((String) pairs[at], pairs[at + 1]);
        }
        return made;
    }

    private void say(Map<String, Object> fields) {
        Map<String, Object> line = fields("client", name);
        line.putAll(fields);
        synchronized (System.out) { // listeners run in many threads; a line is one line
            System.out.println(GSON.toJson(line));
            System.out.flush();
        }
    }

    private static Map<String, Object> seen(String key, MessageView message) {
        byte[] body = new byte[message.getBody().remaining()];
        message.getBody().get(body);
        return fields(
            key, Integer.parseInt(message.getProperties().get("number")),
            "id", message.getMessageId().toString(),
            "body", new String(body, StandardCharsets.UTF_8),
            "tag", message.getTag().orElse(null),
            "keys", message.getKeys(),
            "group", message.getMessageGroup().orElse(null),
            "priority", message.getPriority().orElse(null),
            "attempt", message.getDeliveryAttempt(),
            "at_ms", System.currentTimeMillis(),
            "at_us", nowUs());
    }

    private static long nowUs() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    private static ClientConfiguration configuration(Command command) {
        var builder = ClientConfiguration.newBuilder().setEndpoints(command.text("endpoint"));
        builder.enableSsl(command.flag("tls")).setMaxStartupAttempts(1).setRequestTimeout(PATIENCE);
        if (!command.text("access_key").isEmpty()) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(command.text("access_key"), command.text("secret_key")));
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> subscription(Command command) {
        String filter = command.text("filter");
        FilterExpression expression = filter.startsWith("SQL ")
            ? new FilterExpression(filter.substring(4), FilterExpressionType.SQL92)
            : new FilterExpression(filter.isEmpty() ? "*" : filter);
        return Map.of(command.text("topic"), expression);
    }

    private static String body(Command command, int number) {
        return command.text("stream").isEmpty() ? "body-" + number : command.text("stream") + ":" + number;
    }

    private static Message message(Command command, int number) {
        MessageBuilder builder = SDK.newMessageBuilder()
            .setTopic(command.text("topic"))
            .setBody(body(command, number).getBytes(StandardCharsets.UTF_8))
            .setTag(number % 2 == 0 ? "even" : "odd")
            .setKeys("key-" + number)
            .addProperty("number", String.valueOf(number));
        if (command.number("message_groups") > 0) {
            builder.setMessageGroup("group-" + number % command.number("message_groups"));
        }
        if (command.flag("ordered")) {
            builder.setMessageGroup(command.text("stream"));
        }
        if (command.number("delay_ms") > 0) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + command.number("delay_ms"));
        }
        if (command.number("priorities") > 0) {
            builder.setPriority(number % command.number("priorities"));
        }
        return builder.build();
    }

    private Map<String, Object> producer(Command command) throws Exception {
        var builder = SDK.newProducerBuilder().setClientConfiguration(configuration(command));
        builder.setTopics(command.text("topic"));
        if (command.flag("decide")) {
            builder.setTransactionChecker(message -> {
                Map<String, Object> asked = seen("asked", message);
                say(asked);
                return (int) asked.get("asked") % 2 == 0
                    ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
            });
        }
        client = builder.build();
        return fields();
    }

    private Map<String, Object> simple(Command command) throws Exception {
        client = SDK.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(command))
            .setConsumerGroup(command.text("group"))
            .setAwaitDuration(Duration.ofSeconds(1))
            .setSubscriptionExpressions(subscription(command))
            .build();
        return fields();
    }

    private Map<String, Object> push(Command command) throws Exception {
        Set<Integer> failed = ConcurrentHashMap.newKeySet();
        String fail = command.text("fail");
        int workMs = command.number("work_ms");
        client = SDK.newPushConsumerBuilder()
            .setClientConfiguration(configuration(command))
            .setConsumerGroup(command.text("group"))
            .setSubscriptionExpressions(subscription(command))
            .setMessageListener(message -> {
                int number = Integer.parseInt(message.getProperties().get("number"));
                if (fail.equals("always") || (fail.equals("first") && failed.add(number))) {
                    say(seen("failed", message));
                    return ConsumeResult.FAILURE;
                }
                Map<String, Object> got = seen("got", message);
                say(got);
                if (workMs > 0) {
                    pause(workMs);
                    say(fields("worked", got.get("body"), "at_us", nowUs()));
                }
                return ConsumeResult.SUCCESS;
            })
            .build();
        return fields();
    }

    private Map<String, Object> send(Command command) throws Exception {
        int end = command.number("first") + command.number("count");
        for (int number = command.number("first"); number < end; number++) {
            Message message = message(command, number);
            SendReceipt receipt = ((Producer) client).send(message);
            receipts.put(number, receipt);
            say(fields("sent", number, "id", receipt.getMessageId().toString(),
                "due_ms", message.getDeliveryTimestamp().orElse(null)));
        }
        return fields();
    }

    /** Of each three: one committed, one rolled back, one left open. */
    private Map<String, Object> transact(Command command) throws Exception {
        int end = command.number("first") + command.number("count");
        for (int number = command.number("first"); number < end; number++) {
            Transaction transaction = ((Producer) client).beginTransaction();
            SendReceipt receipt = ((Producer) client).send(message(command, number), transaction);
            if (number % 3 == 0) {
                transaction.commit();
            } else if (number % 3 == 1) {
                transaction.rollback();
            }
            say(fields("sent", number, "id", receipt.getMessageId().toString()));
        }
        return fields();
    }

    private Map<String, Object> recall(Command command) throws Exception {
        SendReceipt receipt = receipts.get(command.number("number"));
        var recalled = ((Producer) client).recallMessage(command.text("topic"), receipt.getRecallHandle());
        return fields("id", recalled.getMessageId().toString());
    }

    /** Receive and acknowledge until `count` came, or nothing came for `empty` polls. */
    private Map<String, Object> take(Command command) throws Exception {
        SimpleConsumer consumer = (SimpleConsumer) client;
        int got = 0;
        for (int without = 0; got < command.number("count") && without < command.number("empty");) {
            List<MessageView> messages = consumer.receive(16, INVISIBLE);
            without = messages.isEmpty() ? without + 1 : 0;
            for (MessageView message : messages) {
                say(seen("got", message));
                consumer.ack(message);
                got++;
            }
        }
        return fields("count", got);
    }

    private MessageView next() throws Exception {
        for (int polls = 0; polls < 20; polls++) {
            List<MessageView> messages = ((SimpleConsumer) client).receive(1, INVISIBLE);
            if (!messages.isEmpty()) {
                return messages.get(0);
            }
        }
        throw new IllegalStateException("nothing received");
    }

    /** Receive one, hide it for `invisible_ms`, receive it again, acknowledge. */
    private Map<String, Object> nack(Command command) throws Exception {
        MessageView message = next();
        say(seen("got", message));
        ((SimpleConsumer) client).changeInvisibleDuration(message, Duration.ofMillis(command.number("invisible_ms")));
        MessageView again = next();
        say(seen("got", again));
        ((SimpleConsumer) client).ack(again);
        return fields();
    }

    private Map<String, Object> stream(Command command) {
        boolean repeats = !command.text("stream").isEmpty();
        return inThread(new Runnable() {
            private int number;

            @Override
            public void run() {
                long begun = System.nanoTime();
                boolean sent = false;
                Map<String, Object> line = fields("stream", command.text("stream"));
                try {
                    ((Producer) client).send(message(command, number));
                    sent = true;
                    line.put("sent", number);
                } catch (Exception error) {
                    line.putAll(fields("refused", number, "why", reasons(error)));
                }
                line.put("took_ms", (System.nanoTime() - begun) / 1_000_000);
                line.put("at_us", nowUs());
                say(line);
                number += sent || !repeats ? 1 : 0;
                pause(Math.max(0, command.number("pace_ms") - PAUSE_MS));
            }
        });
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private Map<String, Object> drain(Command command) {
        SimpleConsumer consumer = (SimpleConsumer) client;
        return inThread(() -> {
            try {
                for (MessageView message : consumer.receive(16, INVISIBLE)) {
                    say(seen("got", message));
                    consumer.ack(message);
                }
            } catch (Exception error) {
                say(fields("failed", reasons(error)));
            }
        });
    }

    private Map<String, Object> inThread(Runnable step) {
        resting = false;
        worker = new Thread(() -> {
            while (!resting) {
                step.run();
                pause(PAUSE_MS);
            }
        });
        worker.start();
        return fields();
    }

    private Map<String, Object> rest() throws InterruptedException {
        resting = true;
        worker.join();
        return fields();
    }

    private Map<String, Object> close() throws Exception {
        long begun = System.nanoTime();
        client.close();
        return fields("shutdown_ms", (System.nanoTime() - begun) / 1_000_000, "closed", name, "at_us", nowUs());
    }

    private Map<String, Object> obey(Command command) throws Exception {
        return switch (command.text("do")) {
            case "producer" -> producer(command);
            case "simple" -> simple(command);
            case "push" -> push(command);
            case "send" -> send(command);
            case "transact" -> transact(command);
            case "recall" -> recall(command);
            case "take" -> take(command);
            case "nack" -> nack(command);
            case "stream" -> stream(command);
            case "drain" -> drain(command);
            case "rest" -> rest();
            case "close" -> close();
            default -> throw new IllegalArgumentException("unknown command " + command.text("do"));
        };
    }

    private static String reasons(Throwable error) {
        List<String> texts = new ArrayList<>();
        for (Throwable at = error; at != null && texts.size() < 9; at = at.getCause()) {
            texts.add(at.toString());
        }
        return String.join(" <- ", texts);
    }

    @SuppressWarnings("unchecked")
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Command command = new Command(GSON.fromJson(line, Map.class));
            Peer peer = PEERS.computeIfAbsent(command.text("client"), Peer::new);
            Map<String, Object> answer = fields("done", command.text("do"));
            try {
                answer.putAll(peer.obey(command));
            } catch (Exception error) {
                answer.put("error", reasons(error));
            }
            peer.say(answer);
        }
        System.exit(0); // clients that nobody closed keep their threads
    }
}
