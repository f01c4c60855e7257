import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** DefaultMQPushConsumer whose listener fails: retries after delays, dead letters. The first word of a body says how often it fails. */
final class RetryCases {
    private RetryCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("retry", RetryCases::retry);
        cases.put("retry-stock-delay", RetryCases::stockDelay);
        cases.put("retry-orderly", RetryCases::orderly);
    }

    /**
     * A consumer learns the route of its retry topic when it starts, and then 30 s later. The first member's heartbeat makes that topic,
     * so this member comes and goes.
     */
    private static void known(World world, Transcript out, String group, String topic) throws Exception {
        PushCases.collect(world, group, topic, "*", new ArrayList<>()).shutdown();
        out.await("the retry topic of " + group, () -> world.admin.examineTopicRouteInfo("%RETRY%" + group) != null);
    }

    private static String delivery(Transcript out, MessageExt message) {
        return message.getReconsumeTimes() + " " + out.content(message);
    }

    private static void retry(World world, Transcript out) throws Exception {
        String topic = "java-retry";
        String group = "java-retry-group";
        world.createTopic(out, topic, 1);
        known(world, out, group, topic);
        Message once = new Message(topic, "TagR", "key", World.bytes("once"));
        once.putUserProperty("colour", "red");
        world.producer.send(once, world.queue(topic, 0));
        world.producer.send(World.message(topic, "always"), world.queue(topic, 0));
        world.producer.send(World.message(topic, "poison"), world.queue(topic, 0));
        List<String> deliveries = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = world.consumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = Transcript.body(message.getBody());
            deliveries.add(delivery(out, message));
            context.setDelayLevelWhenNextConsume(body.equals("poison") ? -1 : 1);
            return body.equals("once") && message.getReconsumeTimes() > 0 ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        out.await("six deliveries", () -> deliveries.size() >= 6);
        List<MessageExt> dead = world.read(out, "%DLQ%" + group, 0, 2);
        consumer.shutdown();
        Transcript.sorted(deliveries).forEach(each -> out.line("delivered %s", each));
        dead.stream().map(each -> "reconsumed=" + each.getReconsumeTimes() + " sysFlag=" + each.getSysFlag() + " " + out.content(each)).sorted()
            .forEach(each -> out.line("dead %s", each));
        world.awaitProgress(out, group, topic, Map.of(0, 3L));
        out.line("progress %s", world.progress(group, topic));
        world.admin.examineTopicStats("%RETRY%" + group).getOffsetTable().forEach(
            (queue, offsets) -> out.line("retry queue %d: %d to %d", queue.getQueueId(), offsets.getMinOffset(), offsets.getMaxOffset()));
        world.admin.examineTopicRouteInfo("%DLQ%" + group).getQueueDatas().forEach(
            data -> out.line("dead-letter queues read=%d write=%d perm=%d", data.getReadQueueNums(), data.getWriteQueueNums(), data.getPerm()));
    }

    /** The delay that a broker chooses itself: level 3, 10 s, for the first time. */
    private static void stockDelay(World world, Transcript out) throws Exception {
        String topic = "java-stock-delay";
        world.createTopic(out, topic, 1);
        known(world, out, "java-stock-delay-group", topic);
        world.producer.send(World.message(topic, "once"), world.queue(topic, 0));
        List<Long> times = Collections.synchronizedList(new ArrayList<>());
        List<String> deliveries = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = world.consumer("java-stock-delay-group");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            times.add(System.currentTimeMillis());
            deliveries.add(delivery(out, messages.get(0)));
            return times.size() > 1 ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        out.await("two deliveries", () -> deliveries.size() >= 2);
        consumer.shutdown();
        deliveries.forEach(each -> out.line("delivered %s", each));
        long waited = times.get(1) - times.get(0);
        out.line("waited %s", waited >= 9_900 && waited < 25_000 ? "10 s" : waited + " ms");
    }

    /** An orderly consumer counts by itself and sends to the retry topic itself when the count is full. */
    private static void orderly(World world, Transcript out) throws Exception {
        String topic = "java-retry-orderly";
        String group = "java-retry-orderly-group";
        world.createTopic(out, topic, 1);
        world.producer.send(World.message(topic, "always"), world.queue(topic, 0));
        world.producer.send(World.message(topic, "never"), world.queue(topic, 0));
        List<String> deliveries = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = world.consumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(50);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            deliveries.add(delivery(out, message));
            return Transcript.body(message.getBody()).equals("never") ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        });
        consumer.start();
        out.await("the message behind the one that fails", () -> deliveries.stream().anyMatch(each -> each.contains("body=never")));
        consumer.shutdown();
        world.awaitProgress(out, group, topic, Map.of(0, 2L));
        deliveries.forEach(each -> out.line("delivered %s", each));
        out.line("progress %s", world.progress(group, topic));
    }
}
