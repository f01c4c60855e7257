import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Java's push consumer in consume.py: {@code Consume plain|service|pop|latency NAMESRV TOPIC TAGS MESSAGES MORE BROKER_PID}.
 *
 * <p>DefaultMQPushConsumer with 20 threads, concurrent listeners that only count, and otherwise what the client chooses. plain,
 * service: new groups read the topic of MESSAGES messages MORE times so that the code is compiled, then one that is measured from its
 * first message to its last; the listener of service reads tags, key and a property. pop: the same with consumers that pop, as the
 * rebalance is left to the broker, whose mode for each group is set to POP; measured until the broker has taken all messages as done.
 * latency: a group reads the MESSAGES that are
 * there, prints "ready", and takes the delays of MORE messages with a time in their body, which is the machine's monotonic clock.
 */
public final class Consume {
    private static final int THREADS = 20;
    private static final long PATIENCE = 60;

    private final String kind;
    private final String nameServer;
    private final String topic;
    private final String tags;
    private final long broker;

    private Consume(String kind, String nameServer, String topic, String tags, long broker) {
        this.kind = kind;
        this.nameServer = nameServer;
        this.topic = topic;
        this.tags = tags;
        this.broker = broker;
    }

    public static void main(String[] arguments) throws Exception {
        Consume program = new Consume(arguments[0], arguments[1], arguments[2], arguments[3], Long.parseLong(arguments[6]));
        long messages = Long.parseLong(arguments[4]);
        int more = Integer.parseInt(arguments[5]);
        if (arguments[0].equals("latency")) {
            program.latency(messages, more, System.out);
        } else {
            for (int i = 0; i < more; i++) {
                program.read(messages);
            }
            System.out.println(program.read(messages));
        }
        System.out.flush();
        System.exit(0);
    }

    /** {@code popping}: null for a consumer that pulls. */
    private DefaultMQPushConsumer started(MessageListenerConcurrently listener, Popping popping) throws Exception {
        String group = "benchmark-consume-" + System.nanoTime();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, popping);
        if (popping != null) {
            Popping.setMode(nameServer, topic, group);
            consumer.setClientRebalance(false);
        }
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(THREADS);
        consumer.setConsumeThreadMax(THREADS);
        consumer.subscribe(topic, tags);
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private String read(long messages) throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicLong size = new AtomicLong();
        Edge[] edges = new Edge[2];
        CountDownLatch over = new CountDownLatch(1);
        boolean attributes = kind.equals("service");
        Popping popping = kind.equals("pop") ? new Popping() : null;
        DefaultMQPushConsumer consumer = started((found, context) -> {
            for (MessageExt message : found) {
                if (attributes && (message.getTags() == null || message.getKeys() == null || message.getUserProperty("shop") == null)) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                size.addAndGet(message.getBody().length);
                long number = count.incrementAndGet();
                if (number == 1) {
                    edges[0] = new Edge();
                } else if (number == messages) {
                    edges[1] = new Edge();
                    over.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }, popping);
        if (!over.await(PATIENCE, TimeUnit.SECONDS)) {
            throw new IllegalStateException(count.get() + " of " + messages + " messages came");
        }
        if (popping != null) {
            popping.awaitAcknowledged(messages, PATIENCE);
            edges[1] = new Edge();
        }
        Thread.sleep(300);
        consumer.shutdown();
        String acknowledged = "\"acknowledged\": " + (popping == null ? null : popping.acknowledged());
        return result(count.get(), size.get(), edges[0], edges[1], acknowledged);
    }

    private void latency(long backlog, int expected, PrintStream out) throws Exception {
        long[] delays = new long[expected];
        AtomicInteger taken = new AtomicInteger();
        AtomicLong count = new AtomicLong();
        CountDownLatch ready = new CountDownLatch(1);
        CountDownLatch over = new CountDownLatch(1);
        long since = System.nanoTime();
        DefaultMQPushConsumer consumer = started((found, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : found) {
                long sent = ByteBuffer.wrap(message.getBody()).getLong();
                if (count.incrementAndGet() == backlog) {
                    ready.countDown();
                }
                if (sent > since) {
                    int place = taken.getAndIncrement();
                    if (place < expected) {
                        delays[place] = now - sent;
                    }
                    if (place == expected - 1) {
                        over.countDown();
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }, null);
        if (!ready.await(PATIENCE, TimeUnit.SECONDS)) {
            throw new IllegalStateException(count.get() + " of " + backlog + " messages came");
        }
        Thread.sleep(500);
        Edge start = new Edge();
        out.println("ready");
        out.flush();
        if (!over.await(PATIENCE, TimeUnit.SECONDS)) {
            throw new IllegalStateException(taken.get() + " of " + expected + " messages with a time came");
        }
        Edge end = new Edge();
        Thread.sleep(300);
        consumer.shutdown();
        Arrays.sort(delays);
        out.println(result(taken.get(), 0, start, end, quantiles(delays)));
    }

    private static String quantiles(long[] sorted) {
        double p99 = sorted[(int) Math.min(sorted.length - 1, sorted.length * 0.99)] / 1e6;
        return "\"p50_ms\": " + sorted[sorted.length / 2] / 1e6 + ", \"p99_ms\": " + p99;
    }

    private String result(long messages, long size, Edge start, Edge end, String more) throws Exception {
        String brokerSeconds = broker == 0 ? "null" : String.valueOf(end.broker - start.broker);
        return String.format(
            "{\"messages\": %d, \"bytes\": %d, \"seconds\": %s, \"client_seconds\": %s, \"broker_seconds\": %s, \"rss_mb\": %s, %s}",
            messages, size, (end.time - start.time) / 1e9, end.cpu - start.cpu, brokerSeconds, Meter.peakMebibytes(), more);
    }

    private final class Edge {
        final long time = System.nanoTime();
        final double cpu = Meter.ownSeconds();
        final double broker;

        Edge() {
            try {
                broker = Consume.this.broker == 0 ? 0 : Meter.seconds(Consume.this.broker);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
