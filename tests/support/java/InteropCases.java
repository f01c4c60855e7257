import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that another client has put into "interop-to-java", and such as it shall find in "interop-from-java". */
final class InteropCases {
    private static final int COUNT = 12;

    private InteropCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("interop-receive", InteropCases::receive);
        cases.put("interop-send", InteropCases::send);
    }

    private static void receive(World world, Transcript out) throws Exception {
        ConcurrentLinkedQueue<MessageExt> got = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = PushCases.collect(world, "java-interop-group", "interop-to-java", "*", got);
        out.await(COUNT + " messages", () -> got.size() >= COUNT);
        consumer.shutdown();
        got.stream().map(out::content).sorted().forEach(each -> out.line("came %s", each));
    }

    private static void send(World world, Transcript out) throws Exception {
        String topic = "interop-from-java";
        world.createTopic(out, topic, 2);
        for (int i = 0; i < 4; i++) {
            Message message = new Message(topic, "Tag" + i, "key" + i + " second", i, World.bytes("from Java \u2615 " + i), true);
            message.putUserProperty("number", "n\u00ba " + i);
            out.line("sent %s", world.producer.send(message, world.queue(topic, i % 2)).getSendStatus());
        }
        Message large = new Message(topic, "Large", World.bytes("large ".repeat(2_000)));
        out.line("sent %s", world.producer.send(large, world.queue(topic, 0)).getSendStatus());
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            batch.add(new Message(topic, "Batch", "batch" + i, World.bytes("batched " + i)));
        }
        out.line("sent %s", world.producer.send(batch, world.queue(topic, 1)).getSendStatus());
    }
}
