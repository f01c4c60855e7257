import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Java's pull consumers in pull.py: {@code Pull lite|pull NAMESRV TOPIC MESSAGES WARM_UPS BROKER_PID}, a line of JSON.
 *
 * <p>lite: DefaultLitePullConsumer with all queues assigned and eight pull threads, which fetch ahead while one thread polls; its
 * limits of what it holds are left as they are. pull: DefaultMQPullConsumer, a thread for each queue that pulls 32 messages at a
 * time. Both read the topic WARM_UPS times before it is measured, so that the code is compiled.
 */
public final class Pull {
    private static final int PULLED = 32;
    private static final int THREADS = 8;
    private static final long PATIENCE = 10_000_000_000L;

    private interface Reader {
        default void prepare() throws Exception {
        }

        long[] read() throws Exception;

        void shutdown();
    }

    private Pull() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        String nameServer = arguments[1];
        String topic = arguments[2];
        long messages = Long.parseLong(arguments[3]);
        int warmUps = Integer.parseInt(arguments[4]);
        long broker = Long.parseLong(arguments[5]);
        Reader reader = arguments[0].equals("lite") ? lite(nameServer, topic, messages) : pull(nameServer, topic);
        for (int i = 0; i < warmUps; i++) {
            reader.prepare();
            reader.read();
        }
        reader.prepare();
        double brokerBefore = broker == 0 ? 0 : Meter.seconds(broker);
        double cpu = Meter.ownSeconds();
        long start = System.nanoTime();
        long[] came = reader.read();
        double seconds = (System.nanoTime() - start) / 1e9;
        cpu = Meter.ownSeconds() - cpu;
        String brokerSeconds = broker == 0 ? "null" : String.valueOf(Meter.seconds(broker) - brokerBefore);
        out.printf("{\"messages\": %d, \"bytes\": %d, \"seconds\": %s, \"client_seconds\": %s, \"broker_seconds\": %s, \"rss_mb\": %s}%n",
            came[0], came[1], seconds, cpu, brokerSeconds, Meter.peakMebibytes());
        out.flush();
        reader.shutdown();
        System.exit(0);
    }

    /** A consumer for each reading, as seeks of one that has read race with its pulls under way; only its start is not measured. */
    private static Reader lite(String nameServer, String topic, long messages) {
        return new Reader() {
            private DefaultLitePullConsumer consumer;
            private Collection<MessageQueue> queues;

            @Override
            public void prepare() throws Exception {
                if (consumer != null) {
                    consumer.shutdown();
                }
                consumer = new DefaultLitePullConsumer("benchmark-java-lite-" + System.nanoTime());
                consumer.setNamesrvAddr(nameServer);
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                consumer.setAutoCommit(false);
                consumer.setPullBatchSize(PULLED);
                consumer.setPullThreadNums(THREADS);
                consumer.start();
                queues = consumer.fetchMessageQueues(topic);
            }

            @Override
            public long[] read() throws Exception {
                consumer.assign(queues);
                long count = 0;
                long size = 0;
                long last = System.nanoTime();
                while (count < messages && System.nanoTime() - last < PATIENCE) {
                    for (MessageExt message : consumer.poll(100)) {
                        count++;
                        size += message.getBody().length;
                        last = System.nanoTime();
                    }
                }
                return new long[] {count, size};
            }

            @Override
            public void shutdown() {
                consumer.shutdown();
            }
        };
    }

    private static Reader pull(String nameServer, String topic) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("benchmark-java-pull");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        ExecutorService threads = Executors.newFixedThreadPool(queues.size());
        return new Reader() {
            @Override
            public long[] read() throws Exception {
                List<Future<long[]>> parts = new ArrayList<>();
                for (MessageQueue queue : queues) {
                    parts.add(threads.submit(() -> queue(consumer, queue)));
                }
                long[] sum = new long[2];
                for (Future<long[]> part : parts) {
                    sum[0] += part.get()[0];
                    sum[1] += part.get()[1];
                }
                return sum;
            }

            @Override
            public void shutdown() {
                threads.shutdown();
                consumer.shutdown();
            }
        };
    }

    private static long[] queue(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long offset = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        long count = 0;
        long size = 0;
        while (offset < end) {
            PullResult result = consumer.pull(queue, "*", offset, PULLED);
            offset = result.getNextBeginOffset();
            if (result.getMsgFoundList() != null) {
                for (MessageExt message : result.getMsgFoundList()) {
                    count++;
                    size += message.getBody().length;
                }
            }
        }
        return new long[] {count, size};
    }
}
