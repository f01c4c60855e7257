import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** DefaultMQProducer: every way to send that stores at once. */
final class SendCases {
    private SendCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("sync", SendCases::sync);
        cases.put("refused", SendCases::refused);
        cases.put("async", SendCases::async);
        cases.put("oneway", SendCases::oneway);
        cases.put("batch", SendCases::batch);
        cases.put("ordered", SendCases::ordered);
        cases.put("compressed", SendCases::compressed);
    }

    private static void sync(World world, Transcript out) throws Exception {
        String topic = "java-sync";
        world.createTopic(out, topic, 4);
        Message full = new Message(topic, "TagA", "key1 key2", 7, World.bytes("all of it"), true);
        full.putUserProperty("colour", "blå");
        out.line("full %s", Transcript.result(world.producer.send(full, world.queue(topic, 2))));
        out.line("bare %s", Transcript.result(world.producer.send(World.message(topic, "bare"), world.queue(topic, 2))));
        Message careless = World.message(topic, "careless");
        careless.setWaitStoreMsgOK(false);
        out.line("careless %s", Transcript.result(world.producer.send(careless, world.queue(topic, 2))));
        world.writeStored(out, topic, 2, 3);

        world.createTopic(out, "java-turns", 4);
        List<String> places = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            SendResult sent = world.producer.send(World.message("java-turns", "turn"));
            places.add(sent.getMessageQueue().getQueueId() + "/" + sent.getQueueOffset());
        }
        out.line("turns %s", Transcript.sorted(places));

        SendResult first = world.producer.send(World.message("java-sync-made", "makes the topic"));
        out.line("made %s offset=%d", first.getSendStatus(), first.getQueueOffset());
        out.await("the route of java-sync-made", () -> world.admin.examineTopicRouteInfo("java-sync-made") != null);
        world.admin.examineTopicRouteInfo("java-sync-made").getQueueDatas().forEach(
            data -> out.line("made %s perm=%d read=%d write=%d", data.getBrokerName(), data.getPerm(), data.getReadQueueNums(), data.getWriteQueueNums()));
    }

    private static void refused(World world, Transcript out) throws Exception {
        String topic = "java-refused";
        world.createTopic(out, topic, 1);
        DefaultMQProducer daring = world.startedProducer("java-daring");
        daring.setMaxMessageSize(8 * 1024 * 1024);
        daring.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        out.fails("queue 99", () -> daring.send(World.message(topic, "nowhere"), world.queue(topic, 99)).getSendStatus());
        out.fails("large body", () -> daring.send(new Message(topic, new byte[4 * 1024 * 1024 + 1]), world.queue(topic, 0)).getSendStatus());
        Message wordy = World.message(topic, "wordy");
        wordy.putUserProperty("long", "x".repeat(33_000));
        out.fails("long properties", () -> daring.send(wordy, world.queue(topic, 0)).getSendStatus());
        world.createTopic(out, new TopicConfig("java-read-only", 1, 1, 4));
        out.fails("read-only topic", () -> daring.send(World.message("java-read-only", "x"), world.queue("java-read-only", 0)).getSendStatus());
        out.fails("read-only topic, any queue", () -> daring.send(World.message("java-read-only", "x")).getSendStatus());
        out.fails("system topic", () -> daring.send(World.message("SCHEDULE_TOPIC_XXXX", "x")).getSendStatus());
        List<Message> uneven = List.of(World.message(topic, "a"), new Message(topic, new byte[4 * 1024 * 1024]));
        out.fails("large batch", () -> daring.send(uneven, world.queue(topic, 0)).getSendStatus());
        out.line("stored %d", world.maxOffset(topic, 0));
        daring.shutdown();
    }

    private static void async(World world, Transcript out) throws Exception {
        String topic = "java-async";
        world.createTopic(out, topic, 2);
        List<String> answers = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(10);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                answers.add(Transcript.result(sent));
                left.countDown();
            }

            @Override
            public void onException(Throwable error) {
                answers.add(out.error(error));
                left.countDown();
            }
        };
        for (int i = 0; i < 9; i++) {
            world.producer.send(World.message(topic, "async-" + i), world.queue(topic, 1), callback);
        }
        world.producer.send(World.message(topic, "nowhere"), world.queue(topic, 99), callback);
        out.await("10 answers", () -> left.getCount() == 0);
        Transcript.sorted(answers).forEach(each -> out.line("answer %s", each));
        List<String> bodies = new ArrayList<>();
        world.read(out, topic, 1, 9).forEach(each -> bodies.add(Transcript.body(each.getBody())));
        out.line("stored %s", Transcript.sorted(bodies));
    }

    private static void oneway(World world, Transcript out) throws Exception {
        String topic = "java-oneway";
        world.createTopic(out, topic, 2);
        for (int i = 0; i < 5; i++) {
            world.producer.sendOneway(World.message(topic, "oneway"), world.queue(topic, 1));
        }
        world.producer.sendOneway(World.message(topic, "nowhere"), world.queue(topic, 99));
        world.writeStored(out, topic, 1, 5);
    }

    private static void batch(World world, Transcript out) throws Exception {
        String topic = "java-batch";
        world.createTopic(out, topic, 2);
        Collection<Message> messages = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            messages.add(new Message(topic, "Tag" + i, "key" + i, World.bytes("batched-" + i)));
        }
        out.line("five %s", Transcript.result(world.producer.send(messages, world.queue(topic, 1))));
        out.line("one %s", Transcript.result(world.producer.send(List.of(World.message(topic, "alone")), world.queue(topic, 1))));
        world.writeStored(out, topic, 1, 6);
        out.line("any queue %s", world.producer.send(messages).getSendStatus());
    }

    private static void ordered(World world, Transcript out) throws Exception {
        String topic = "java-ordered";
        world.createTopic(out, topic, 4);
        int[] counts = new int[4];
        for (int i = 0; i < 12; i++) {
            SendResult sent = world.producer.send(World.message(topic, "step-" + i), new SelectMessageQueueByHash(), "order" + i % 3);
            counts[sent.getMessageQueue().getQueueId()]++;
            out.line("order%d queue=%d offset=%d", i % 3, sent.getMessageQueue().getQueueId(), sent.getQueueOffset());
        }
        for (int queue = 0; queue < 4; queue++) {
            List<String> bodies = new ArrayList<>();
            for (MessageExt each : world.read(out, topic, queue, counts[queue])) {
                bodies.add(Transcript.body(each.getBody()));
            }
            out.line("queue %d holds %s", queue, bodies);
        }
    }

    private static void compressed(World world, Transcript out) throws Exception {
        String topic = "java-compressed";
        world.createTopic(out, topic, 1);
        byte[] plain = World.bytes("compress me, ".repeat(400));
        byte[] noise = new byte[5_000];
        new Random(7).nextBytes(noise);
        for (CompressionType type : new CompressionType[] {CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD}) {
            DefaultMQProducer packer = world.startedProducer("java-packer-" + type.name());
            packer.setCompressType(type);
            out.line("%s %s", type, Transcript.result(packer.send(new Message(topic, plain), world.queue(topic, 0))));
            packer.shutdown();
        }
        out.line("noise %s", Transcript.result(world.producer.send(new Message(topic, noise), world.queue(topic, 0))));
        world.writeStored(out, topic, 0, 4);
    }
}
