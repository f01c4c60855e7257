import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/** DefaultMQPushConsumer where all goes well: concurrent, shared between two, orderly, filtered, broadcast. */
final class PushCases {
    private PushCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("concurrent", PushCases::concurrent);
        cases.put("balance", PushCases::balance);
        cases.put("orderly", PushCases::orderly);
        cases.put("tags", PushCases::tags);
        cases.put("sql", PushCases::sql);
        cases.put("broadcast", PushCases::broadcast);
    }

    /** Started; what it gets goes to ``got``. With tags it sends its heartbeats in the second form, by fingerprint. */
    static DefaultMQPushConsumer collect(World world, String group, String topic, String tags, java.util.Collection<MessageExt> got) throws Exception {
        while (true) {
            DefaultMQPushConsumer consumer = world.consumer(group);
            consumer.setUseHeartbeatV2(!tags.equals("*"));
            consumer.subscribe(topic, tags);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                got.addAll(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            if (!consumer.isUseHeartbeatV2() || hasLatestSubscription(world, consumer, topic)) {
                return consumer;
            }
            System.err.printf("%s: the broker has an older subscription, once more%n", group);
            consumer.shutdown();
        }
    }

    /**
     * Whether the broker knows the version that the first rebalance gave the subscription. The client sends it at once, but not while
     * another heartbeat is under way, and later not either, for the fingerprint leaves the version out: the broker refuses pulls with
     * SUBSCRIPTION_NOT_LATEST until the next rebalance that changes something, here 40 s.
     */
    private static boolean hasLatestSubscription(World world, DefaultMQPushConsumer consumer, String topic) throws Exception {
        DefaultMQPushConsumerImpl client = consumer.getDefaultMQPushConsumerImpl();
        long deadline = System.nanoTime() + 4_000_000_000L;
        int times = 0; // a queue is in the table a moment before the version is new
        while (System.nanoTime() < deadline) {
            try {
                SubscriptionData known = world.admin.examineConsumerConnectionInfo(consumer.getConsumerGroup()).getSubscriptionTable().get(topic);
                boolean balanced = client.getRebalanceImpl().getProcessQueueTable().keySet().stream().anyMatch(queue -> queue.getTopic().equals(topic));
                boolean latest = balanced && known != null && known.getSubVersion() >= client.getSubscriptionInner().get(topic).getSubVersion();
                times = latest ? times + 1 : 0;
                if (times == 5) {
                    return true;
                }
            } catch (MQBrokerException | MQClientException notYet) {
                // the broker does not know the group, or no server knows its retry topic
            }
            Thread.sleep(25);
        }
        return false;
    }

    private static List<String> bodies(java.util.Collection<MessageExt> messages) {
        List<String> bodies = new ArrayList<>();
        messages.forEach(each -> bodies.add(Transcript.body(each.getBody())));
        return Transcript.sorted(bodies);
    }

    private static void concurrent(World world, Transcript out) throws Exception {
        String topic = "java-concurrent";
        String group = "java-concurrent-group";
        world.createTopic(out, topic, 4);
        world.fill(topic, 4, 0, 20);
        ConcurrentLinkedQueue<MessageExt> got = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = collect(world, group, topic, "*", got);
        out.await("20 messages", () -> got.size() >= 20);
        world.fill(topic, 4, 20, 24);
        out.await("24 messages", () -> got.size() >= 24);
        consumer.shutdown();
        out.line("came %s", bodies(got));
        got.stream().map(out::stored).sorted().limit(2).forEach(each -> out.line("came %s", each));
        world.awaitProgress(out, group, topic, Map.of(0, 6L, 1, 6L, 2, 6L, 3, 6L));
        out.line("progress %s", world.progress(group, topic));

        world.fill(topic, 4, 24, 28);
        ConcurrentLinkedQueue<MessageExt> later = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer second = collect(world, group, topic, "*", later);
        out.await("4 more messages", () -> later.size() >= 4);
        second.shutdown();
        out.line("came after a restart %s", bodies(later));
    }

    private static void balance(World world, Transcript out) throws Exception {
        String topic = "java-balance";
        String group = "java-balance-group";
        world.createTopic(out, topic, 4);
        Map<Integer, String> taker = new ConcurrentHashMap<>();
        DefaultMQPushConsumer first = member(world, group, topic, "first", taker);
        out.await("first to have all queues", () -> assigned(first) == 4);
        long joined = System.nanoTime();
        DefaultMQPushConsumer second = member(world, group, topic, "second", taker);
        out.await("each to have two queues", () -> assigned(first) == 2 && assigned(second) == 2);
        out.line("first informed that another came: %s", informed(joined));
        world.fill(topic, 4, 0, 4);
        out.await("4 messages", () -> taker.size() == 4);
        out.line("two members: first took %d, second took %d", Collections.frequency(taker.values(), "first"), Collections.frequency(taker.values(), "second"));
        first.shutdown();
        long left = System.nanoTime();
        out.await("second to have all queues", () -> assigned(second) == 4);
        out.line("second informed that the other left: %s", informed(left));
        taker.clear();
        world.fill(topic, 4, 4, 8);
        out.await("4 more messages", () -> taker.size() == 4);
        out.line("one member left: %s", new TreeMap<>(taker));
        second.shutdown();
    }

    private static DefaultMQPushConsumer member(World world, String group, String topic, String name, Map<Integer, String> taker) throws Exception {
        DefaultMQPushConsumer consumer = world.consumer(group);
        consumer.setInstanceName(name + "-member");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> taker.put(each.getQueueId(), name));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** A member that the broker does not inform looks by itself, every 20 s. */
    private static boolean informed(long since) {
        return System.nanoTime() - since < 12_000_000_000L;
    }

    private static long assigned(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals("java-balance")).count();
    }

    private static void orderly(World world, Transcript out) throws Exception {
        String topic = "java-orderly";
        String group = "java-orderly-group";
        world.createTopic(out, topic, 3);
        world.fill(topic, 3, 0, 12);
        Map<Integer, List<String>> got = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = world.consumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = Transcript.body(message.getBody());
            got.computeIfAbsent(message.getQueueId(), key -> Collections.synchronizedList(new ArrayList<>())).add(body + "/" + message.getReconsumeTimes());
            context.setSuspendCurrentQueueTimeMillis(100);
            return body.equals("body-4") && message.getReconsumeTimes() < 2 ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        out.await("14 deliveries", () -> got.values().stream().mapToInt(List::size).sum() >= 14);
        consumer.shutdown();
        new TreeMap<>(got).forEach((queue, bodies) -> out.line("queue %d got %s", queue, bodies));
        world.awaitProgress(out, group, topic, Map.of(0, 4L, 1, 4L, 2, 4L));
        out.line("progress %s", world.progress(group, topic));
    }

    private static void tags(World world, Transcript out) throws Exception {
        String topic = "java-tags";
        String group = "java-tags-group";
        world.createTopic(out, topic, 1);
        for (String tag : new String[] {"TagA", "TagB", "TagC", null, "AaTag", "BBTag", "TagA"}) {
            world.producer.send(new Message(topic, tag, World.bytes("tagged " + tag)), world.queue(topic, 0));
        }
        ConcurrentLinkedQueue<MessageExt> got = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = collect(world, group, topic, "TagA || TagC || AaTag", got);
        out.await("4 messages", () -> got.size() >= 4);
        consumer.shutdown();
        world.awaitProgress(out, group, topic, Map.of(0, 7L));
        out.line("came %s", bodies(got));
        out.line("progress %s", world.progress(group, topic));
    }

    private static void sql(World world, Transcript out) throws Exception {
        String topic = "java-sql";
        world.createTopic(out, topic, 1);
        DefaultMQPushConsumer consumer = world.consumer("java-sql-group");
        consumer.subscribe(topic, MessageSelector.bySql("colour = 'red'"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        out.fails("start", () -> {
            consumer.start();
            return "nothing";
        });
    }

    private static void broadcast(World world, Transcript out) throws Exception {
        String topic = "java-broadcast";
        world.createTopic(out, topic, 2);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<ConcurrentLinkedQueue<MessageExt>> got = List.of(new ConcurrentLinkedQueue<>(), new ConcurrentLinkedQueue<>());
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = world.consumer("java-broadcast-group");
            ConcurrentLinkedQueue<MessageExt> own = got.get(i);
            consumer.setInstanceName("broadcast-" + i);
            consumer.setMessageModel(MessageModel.BROADCASTING);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                own.addAll(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        world.fill(topic, 2, 0, 4);
        for (ConcurrentLinkedQueue<MessageExt> each : got) {
            out.await("4 messages for each", () -> each.size() >= 4);
            out.line("member got %s", bodies(each));
        }
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }
}
