import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultLitePullConsumer: subscribed, and with queues of its own choice. */
final class LitePullCases {
    private LitePullCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("lite-pull", LitePullCases::subscribed);
        cases.put("lite-pull-assigned", LitePullCases::assigned);
    }

    private static DefaultLitePullConsumer consumer(World world, String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(world.nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(World.HEARTBEAT_MS);
        consumer.setAutoCommit(false);
        consumer.setPullThreadNums(4);
        return consumer;
    }

    private static List<MessageExt> poll(Transcript out, DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> got = new ArrayList<>();
        out.await(count + " polled messages", () -> {
            got.addAll(consumer.poll(200));
            return got.size() >= count;
        });
        return got;
    }

    private static void subscribed(World world, Transcript out) throws Exception {
        String topic = "java-lite";
        String group = "java-lite-group";
        world.createTopic(out, topic, 4);
        world.fill(topic, 4, 0, 20);
        DefaultLitePullConsumer consumer = consumer(world, group);
        consumer.subscribe(topic, "*");
        consumer.start();
        List<MessageExt> polled = poll(out, consumer, 20);
        out.line("polled %s", offsets(polled));
        polled.stream().map(out::stored).sorted().limit(2).forEach(each -> out.line("polled %s", each));
        out.line("assigned %d, polled again %d", consumer.assignment().size(), consumer.poll(100).size());
        consumer.commit();
        consumer.shutdown();
        world.awaitProgress(out, group, topic, Map.of(0, 5L, 1, 5L, 2, 5L, 3, 5L));
        out.line("progress %s", world.progress(group, topic));
    }

    private static void assigned(World world, Transcript out) throws Exception {
        String topic = "java-lite-assigned";
        world.createTopic(out, topic, 2);
        world.fill(topic, 2, 0, 20);
        DefaultLitePullConsumer consumer = consumer(world, "java-lite-assigned-group");
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
        queues.sort(null);
        out.line("queues %s", queues.stream().map(queue -> queue.getBrokerName() + "/" + queue.getQueueId()).toList());
        MessageQueue queue = queues.get(1);
        consumer.assign(List.of(queue));
        consumer.pause(List.of(queue)); // a pull that is under way at a seek may bring its messages after it
        while (!consumer.poll(1000).isEmpty()) {
        }
        consumer.seek(queue, 6);
        consumer.resume(List.of(queue));
        out.line("from 6 %s", offsets(poll(out, consumer, 4)));
        consumer.seekToBegin(queue);
        out.line("from the start %s", offsets(poll(out, consumer, 10)));
        consumer.seekToEnd(queue);
        world.fill(topic, 2, 20, 22);
        out.line("from the end %s", offsets(poll(out, consumer, 1)));
        consumer.commit(Map.of(queue, 7L), true);
        out.await("the committed offset", () -> consumer.committed(queue) == 7);
        out.line("committed %d", consumer.committed(queue));
        out.line("offset for the beginning of time %d, for tomorrow %d", consumer.offsetForTimestamp(queue, 0L),
            consumer.offsetForTimestamp(queue, System.currentTimeMillis() + 86_400_000));
        out.fails("seek behind the end", () -> {
            consumer.seek(queue, 99);
            return "nothing";
        });
        consumer.shutdown();
    }

    private static String offsets(List<MessageExt> messages) {
        Map<Integer, List<Long>> offsets = new TreeMap<>();
        messages.forEach(each -> offsets.computeIfAbsent(each.getQueueId(), key -> new ArrayList<>()).add(each.getQueueOffset()));
        return offsets.toString();
    }
}
