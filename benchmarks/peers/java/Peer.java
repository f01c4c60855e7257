import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The official Java client, one measured run. Modes: sync-N (N threads), async-N (one thread, N under way, callbacks),
 * autobatch-N (the same with setAutoBatch(true)), batch-N (N threads, 32 messages a call), each also with "production-" before it.
 *
 * With an access_key in the specification requests are signed by AclClientRPCHook, with the secret in RMQ_SECRET_KEY. With attributes
 * in it, each message carries these tags, keys and properties.
 *
 * Automatic batching only serves calls without a timeout of their own, so no call has one: the producer's is 3 s for all.
 */
public final class Peer {
    private static final int BATCH = 32;
    private static final int SAMPLED = 8;
    private static final int MOST_SAMPLES = 4_000_000;

    private final JSONObject spec;
    private final String topic;
    private final byte[] body;
    private final boolean withAttributes;
    private final String tags;
    private final String keys;
    private final Map<String, String> properties = new LinkedHashMap<>();
    private final DefaultMQProducer producer;
    private final LongAdder count = new LongAdder();
    private final Map<String, LongAdder> failures = new ConcurrentHashMap<>();
    private final long[] latencies = new long[MOST_SAMPLES];
    private final AtomicInteger sampled = new AtomicInteger();
    private volatile boolean stop;
    private volatile boolean recording;

    private Peer(JSONObject spec) {
        this.spec = spec;
        topic = spec.getString("topic");
        body = new byte[spec.getIntValue("body")];
        Arrays.fill(body, (byte) 'x');
        JSONObject attributes = spec.getJSONObject("attributes");
        withAttributes = attributes != null;
        tags = withAttributes ? attributes.getString("tags") : null;
        keys = withAttributes ? attributes.getString("keys") : null;
        if (withAttributes) {
            attributes.getJSONObject("properties").forEach((name, value) -> properties.put(name, (String) value));
        }
        producer = new DefaultMQProducer("benchmark", signing(spec.getString("access_key")));
        producer.setNamesrvAddr(spec.getString("namesrv"));
        producer.setSendMsgTimeout(3000);
        producer.setInstanceName("peer-" + ProcessHandle.current().pid());
    }

    public static void main(String[] arguments) throws Exception {
        new Peer(JSON.parseObject(arguments[0])).run();
        System.exit(0);
    }

    private static RPCHook signing(String accessKey) {
        if (accessKey == null || accessKey.isEmpty()) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(accessKey, System.getenv("RMQ_SECRET_KEY")));
    }

    private Message message() {
        if (!withAttributes) {
            return new Message(topic, body);
        }
        Message message = new Message(topic, tags, keys, body);
        properties.forEach(message::putUserProperty);
        return message;
    }

    private void run() throws Exception {
        String mode = spec.getString("mode").replaceFirst("^production-", "");
        String kind = mode.substring(0, mode.indexOf('-'));
        int depth = Integer.parseInt(mode.substring(mode.indexOf('-') + 1));
        if (kind.equals("autobatch")) {
            producer.setAutoBatch(true);
        }
        producer.start();
        List<Thread> threads = new ArrayList<>();
        if (kind.equals("async") || kind.equals("autobatch")) {
            threads.add(new Thread(() -> callbacks(depth)));
        } else {
            for (int number = 0; number < depth; number++) {
                boolean timed = depth < 64 || number % SAMPLED == 0;
                threads.add(new Thread(kind.equals("batch") ? () -> batches(timed) : () -> singles(timed)));
            }
        }
        threads.forEach(Thread::start);
        long most = spec.getLongValue("max_messages");
        until(spec.getDoubleValue("warm_up"), most / 2);
        recording = true;
        Mark start = new Mark();
        say("edge start");
        until(spec.getDoubleValue("seconds"), start.messages + most / 2);
        Mark end = new Mark();
        recording = false;
        say("edge end");
        Thread.sleep(100);
        stop = true;
        for (Thread thread : threads) {
            thread.join();
        }
        say(result(start, end));
        producer.shutdown();
    }

    private void singles(boolean timed) {
        while (!stop) {
            long begun = System.nanoTime();
            try {
                accept(producer.send(message()), 1);
                taken(timed, begun);
            } catch (Exception error) {
                failed(error, 1);
            }
        }
    }

    private void batches(boolean timed) {
        while (!stop) {
            long begun = System.nanoTime();
            List<Message> messages = new ArrayList<>(BATCH);
            for (int number = 0; number < BATCH; number++) {
                messages.add(message());
            }
            try {
                accept(producer.send(messages), BATCH);
                taken(timed, begun);
            } catch (Exception error) {
                failed(error, BATCH);
            }
        }
    }

    private void callbacks(int depth) {
        Semaphore room = new Semaphore(depth);
        long number = 0;
        while (!stop) {
            room.acquireUninterruptibly();
            boolean timed = depth < 64 || number++ % SAMPLED == 0;
            long begun = System.nanoTime();
            try {
                producer.send(message(), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        accept(result, 1);
                        taken(timed, begun);
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed(error, 1);
                        room.release();
                    }
                });
            } catch (Exception error) {
                failed(error, 1);
                room.release();
            }
        }
        room.acquireUninterruptibly(depth);
    }

    private void accept(SendResult result, int messages) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            count.add(messages);
        } else {
            failed(new IllegalStateException(String.valueOf(result.getSendStatus())), messages);
        }
    }

    private void taken(boolean timed, long begun) {
        if (timed && recording) {
            int place = sampled.getAndIncrement();
            if (place < MOST_SAMPLES) {
                latencies[place] = System.nanoTime() - begun;
            }
        }
    }

    private void failed(Throwable error, int messages) {
        String text = error.getClass().getSimpleName() + ": " + error.getMessage();
        String name = text.lines().findFirst().orElse("").substring(0, Math.min(80, text.lines().findFirst().orElse("").length()));
        failures.computeIfAbsent(name, ignored -> new LongAdder()).add(messages);
        try {
            Thread.sleep(10);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void until(double seconds, long messages) throws InterruptedException {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (count.sum() < messages && System.nanoTime() < deadline) {
            Thread.sleep(Math.max(1, Math.min(20, (deadline - System.nanoTime()) / 1_000_000)));
        }
    }

    private String result(Mark start, Mark end) throws Exception {
        long messages = end.messages - start.messages;
        double seconds = (end.time - start.time) / 1e9;
        double per = 1e6 / Math.max(1, messages);
        int samples = Math.min(sampled.get(), MOST_SAMPLES);
        long[] sorted = Arrays.copyOf(latencies, samples);
        Arrays.sort(sorted);
        JSONObject found = new JSONObject();
        found.put("side", spec.getString("side"));
        found.put("mode", spec.getString("mode"));
        found.put("messages", messages);
        found.put("seconds", seconds);
        found.put("rate", messages / seconds);
        found.put("client_us", (end.cpu - start.cpu) * per);
        found.put("broker_us", spec.get("broker_pid") == null ? null : (end.broker - start.broker) * per);
        found.put("p50_us", quantile(sorted, 0.5));
        found.put("p99_us", quantile(sorted, 0.99));
        found.put("p999_us", quantile(sorted, 0.999));
        found.put("max_us", quantile(sorted, 1.0));
        found.put("rss_mb", end.rss);
        found.put("total", count.sum());
        JSONObject counted = new JSONObject();
        failures.forEach((name, number) -> counted.put(name, number.sum()));
        found.put("failures", counted);
        return found.toJSONString();
    }

    private static Double quantile(long[] sorted, double share) {
        return sorted.length == 0 ? null : sorted[(int) Math.min(sorted.length - 1, (long) (sorted.length * share))] / 1e3;
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static double cpuSeconds(String process) throws Exception {
        String stat = Files.readString(Path.of("/proc", process, "stat"));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
    }

    private static double peakMegabytes() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM")) {
                return Long.parseLong(line.split("\\s+")[1]) / 1024.0;
            }
        }
        return 0;
    }

    private final class Mark {
        final long messages = count.sum();
        final long time = System.nanoTime();
        final double cpu = cpuSeconds("self");
        final double rss = peakMegabytes();
        final double broker = spec.get("broker_pid") == null ? 0 : cpuSeconds(spec.getString("broker_pid"));

        Mark() throws Exception {}
    }
}
