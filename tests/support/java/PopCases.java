import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;

/** DefaultMQPushConsumer that asks the broker for its queues, and is to pop them. */
final class PopCases {
    private PopCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("pop", PopCases::pop);
    }

    private static void pop(World world, Transcript out) throws Exception {
        String topic = "java-pop";
        String group = "java-pop-group";
        world.createTopic(out, topic, 4);
        world.fill(topic, 4, 0, 12);
        world.admin.setMessageRequestMode(world.brokerAddress, topic, group, MessageRequestMode.POP, 0, 15_000);
        ConcurrentLinkedQueue<MessageExt> got = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<MessageExt> again = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = world.consumer(group);
        consumer.setClientRebalance(false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            boolean fails = Transcript.body(message.getBody()).equals("body-5") && message.getReconsumeTimes() == 0;
            (message.getReconsumeTimes() == 0 ? got : again).add(message);
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        out.await("12 messages", () -> got.size() >= 12);
        List<String> popped = new ArrayList<>();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().keySet()
            .forEach(queue -> popped.add(queue.getTopic() + "/" + queue.getQueueId()));
        out.line("popped %s", popped);
        List<String> bodies = new ArrayList<>();
        got.forEach(each -> bodies.add(Transcript.body(each.getBody())));
        out.line("came %s", Transcript.sorted(bodies));
        got.stream().map(out::content).sorted().limit(2).forEach(each -> out.line("came %s", each));
        world.awaitProgress(out, group, topic, Map.of(0, 3L, 1, 3L, 2, 3L, 3, 3L));
        out.line("progress %s", world.progress(group, topic));
        long failed = System.nanoTime();
        out.await("body-5 again", () -> again.size() >= 1);
        out.line("waited for %s", (System.nanoTime() - failed) / 1_000_000_000 >= 8 ? "10 s" : "less");
        again.forEach(each -> out.line("again %s", out.content(each)));
        consumer.shutdown();
    }
}
