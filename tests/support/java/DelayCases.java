import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.producer.RecallMessageHandle;

/** Messages that become visible later: delay levels, timers, and timers that are recalled. */
final class DelayCases {
    private static final long LATE_MS = 15_000;

    private DelayCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("delay-level", DelayCases::level);
        cases.put("timer", DelayCases::timer);
        cases.put("recall", DelayCases::recall);
    }

    /** Without the offset: it is that of the queue of the level, in which retries of other cases are, too. */
    private static String placeless(SendResult sent) {
        return Transcript.result(sent).replaceAll(" offset=[0-9]+", "");
    }

    private static void level(World world, Transcript out) throws Exception {
        String topic = "java-level";
        world.createTopic(out, topic, 2);
        Message message = new Message(topic, "TagD", "later", World.bytes("one second"));
        message.setDelayTimeLevel(1);
        SendResult sent = world.producer.send(message, world.queue(topic, 1));
        out.line("sent %s", placeless(sent));
        Message far = World.message(topic, "a level above the last");
        far.setDelayTimeLevel(99);
        out.line("level 99 %s", placeless(world.producer.send(far, world.queue(topic, 1))));
        for (MessageExt each : world.read(out, topic, 1, 1)) {
            out.line("came %s %s", when(each, each.getBornTimestamp() + 1_000, 100), out.stored(each));
        }
    }

    private static void timer(World world, Transcript out) throws Exception {
        String topic = "java-timer";
        world.createTopic(out, topic, 1);
        Message seconds = World.message(topic, "in seconds");
        seconds.setDelayTimeSec(2);
        Message millis = World.message(topic, "in milliseconds");
        millis.setDelayTimeMs(2_000);
        send(world, out, topic, seconds, millis);
        long now = System.currentTimeMillis(); // after the first sends, which load classes: on a busy machine for seconds
        Message time = World.message(topic, "at a time");
        time.setDeliverTimeMs(now + 2_000);
        Message past = World.message(topic, "in the past");
        past.setDeliverTimeMs(now - 60_000);
        send(world, out, topic, time, past);
        Message never = World.message(topic, "in four days");
        never.setDelayTimeSec(4 * 86_400);
        out.fails("four days", () -> world.producer.send(never, world.queue(topic, 0)).getSendStatus());
        List<String> came = new ArrayList<>();
        for (MessageExt each : world.read(out, topic, 0, 4)) {
            String body = Transcript.body(each.getBody());
            long due = body.equals("in the past") ? now : body.equals("at a time") ? now + 2_000 : each.getBornTimestamp() + 2_000;
            came.add(when(each, due, 1_100) + " " + out.content(each));
        }
        Transcript.sorted(came).forEach(each -> out.line("came %s", each));
    }

    private static void send(World world, Transcript out, String topic, Message... messages) throws Exception {
        for (Message each : messages) {
            SendResult sent = world.producer.send(each, world.queue(topic, 0));
            out.line("%s: %s", Transcript.body(each.getBody()), placeless(sent));
        }
    }

    private static void recall(World world, Transcript out) throws Exception {
        String topic = "java-recall";
        world.createTopic(out, topic, 1);
        Message kept = World.message(topic, "kept");
        kept.setDelayTimeSec(6);
        Message recalled = World.message(topic, "recalled");
        recalled.setDelayTimeSec(5);
        String handle = world.producer.send(recalled, world.queue(topic, 0)).getRecallHandle();
        RecallMessageHandle.HandleV1 parts = (RecallMessageHandle.HandleV1) RecallMessageHandle.decodeHandle(handle);
        out.line("handle topic=%s broker=%s id=%d", parts.getTopic(), parts.getBrokerName(), parts.getMessageId().length());
        out.line("recalled id=%s", world.producer.recallMessage(topic, handle).equals(parts.getMessageId()) ? "the same" : "another");
        out.fails("bad handle", () -> world.producer.recallMessage(topic, "bm90IGEgaGFuZGxl"));
        world.producer.send(kept, world.queue(topic, 0));
        for (MessageExt each : world.read(out, topic, 0, 1)) {
            out.line("came %s", Transcript.body(each.getBody()));
        }
    }

    private static String when(MessageExt message, long due, long tolerance) {
        long difference = message.getStoreTimestamp() - due;
        return difference < -tolerance ? "early by " + -difference : difference > LATE_MS ? "late by " + difference : "in time";
    }
}
