import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** TransactionMQProducer. The broker checks after 2 s, each second, 3 times at most. The body says what happens to a message. */
final class TransactionCases {
    private TransactionCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("transaction", TransactionCases::decided);
        cases.put("transaction-check", TransactionCases::checked);
        cases.put("transaction-undecided", TransactionCases::undecided);
    }

    /** Decides as the body says: what stands before "then" now, what stands after it when asked. */
    private static final class Listener implements TransactionListener {
        final Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();
        final Map<String, String> seen = new ConcurrentHashMap<>();
        private final Transcript out;

        Listener(Transcript out) {
            this.out = out;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String body = Transcript.body(message.getBody());
            if (body.startsWith("throw")) {
                throw new IllegalStateException("the local transaction broke");
            }
            return state(body.split(" then ")[0]);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = Transcript.body(message.getBody());
            checks.computeIfAbsent(body, key -> new AtomicInteger()).incrementAndGet();
            seen.putIfAbsent(body, String.format("sysFlag=%d transactionId=%s %s", message.getSysFlag(),
                message.getTransactionId() != null && message.getTransactionId().equals(message.getProperty("UNIQ_KEY")) ? "UNIQ_KEY" : message.getTransactionId(),
                often(out.content(message))));
            return state(body.split(" then ")[1]);
        }

        private static LocalTransactionState state(String word) {
            return word.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE
                : word.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }
    }

    private static TransactionMQProducer start(World world, String group, Listener listener) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setTransactionListener(listener);
        return world.started(producer, group);
    }

    private static void send(World world, Transcript out, TransactionMQProducer producer, String topic, String body) throws Exception {
        TransactionSendResult sent = producer.sendMessageInTransaction(new Message(topic, "TagT", "key", World.bytes(body)), null);
        out.line("%s: %s %s transactionId=%s", body, sent.getSendStatus(), sent.getLocalTransactionState(),
            sent.getMsgId().equals(sent.getTransactionId()) ? "msgId" : sent.getTransactionId());
    }

    private static void decided(World world, Transcript out) throws Exception {
        String topic = "java-transaction";
        world.createTopic(out, topic, 1);
        TransactionMQProducer producer = start(world, "java-transactions", new Listener(out));
        for (String body : new String[] {"rollback", "commit", "rollback", "commit"}) {
            send(world, out, producer, topic, body);
        }
        for (MessageExt each : world.read(out, topic, 0, 2)) {
            out.line("came transactionId=%s %s", each.getTransactionId() == null ? "null" : "some", out.stored(each));
        }
        producer.shutdown();
    }

    private static void checked(World world, Transcript out) throws Exception {
        String topic = "java-check";
        world.createTopic(out, topic, 1);
        Listener listener = new Listener(out);
        TransactionMQProducer producer = start(world, "java-checked", listener);
        for (String body : new String[] {"unknown then commit", "unknown then rollback", "throw then commit"}) {
            send(world, out, producer, topic, body);
        }
        out.await("three checks", () -> listener.checks.size() == 3);
        world.read(out, topic, 0, 2).stream().map(out::content).sorted().forEach(each -> out.line("came %s", often(each)));
        listener.seen.entrySet().stream().sorted(Map.Entry.comparingByKey()).forEach(each -> out.line("checked %s: %s", each.getKey(), each.getValue()));
        producer.shutdown();
    }

    /** An answer that takes longer than the interval between two checks is asked for again. */
    private static String often(String text) {
        return text.replaceAll("TRANSACTION_CHECK_TIMES=[123]", "TRANSACTION_CHECK_TIMES=COUNT");
    }

    private static void undecided(World world, Transcript out) throws Exception {
        String topic = "java-undecided";
        world.createTopic(out, topic, 1);
        Listener listener = new Listener(out);
        TransactionMQProducer producer = start(world, "java-undecided", listener);
        send(world, out, producer, topic, "unknown then unknown");
        MessageExt own = null;
        for (int count = 1; own == null; count++) { // those of other cases are there, too, where their answers were late
            own = world.read(out, "TRANS_CHECK_MAX_TIME_TOPIC", 0, count).stream()
                .filter(each -> topic.equals(each.getProperty("REAL_TOPIC"))).findFirst().orElse(null);
        }
        out.line("given up %s", out.content(own));
        out.line("checks %s, visible %d", listener.checks, world.maxOffset(topic, 0));
        producer.shutdown();
    }
}
