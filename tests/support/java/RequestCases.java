import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request and reply between two client instances, one asks, the other consumes and answers; and with another client, both ways. */
final class RequestCases {
    private RequestCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("request-reply", RequestCases::requestReply);
        cases.put("request-to-python", RequestCases::ask);
        cases.put("request-from-python", RequestCases::beAsked);
    }

    private static void requestReply(World world, Transcript out) throws Exception {
        String topic = "java-request";
        world.createTopic(out, topic, 1);
        DefaultMQProducer asker = world.started(new DefaultMQProducer("java-asker"), "asker");
        DefaultMQProducer answerer = world.started(new DefaultMQProducer("java-answerer"), "answerer");
        List<String> replies = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = world.consumer("java-replier");
        consumer.setInstanceName("replier");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> answer(out, answerer, each, replies));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        Message question = new Message(topic, "TagQ", "key", World.bytes("question"));
        question.putUserProperty("from", "asker");
        Message reply = asker.request(question, 20_000);
        out.line("reply topic=%s body=%s flag=%d %s", reply.getTopic(), Transcript.body(reply.getBody()), reply.getFlag(), out.properties(reply.getProperties()));

        List<String> answers = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(2);
        for (String body : new String[] {"first", "second"}) {
            asker.request(World.message(topic, body), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    answers.add(Transcript.body(message.getBody()));
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    answers.add(out.error(error));
                    left.countDown();
                }
            }, 20_000);
        }
        out.await("two answers", () -> left.getCount() == 0);
        out.line("asynchronous %s", Transcript.sorted(answers));
        out.fails("no answer", () -> Transcript.body(asker.request(World.message(topic, "silence"), 1_000).getBody()));
        asker.shutdown();
        Message late = World.message(topic, "to one that is gone");
        world.producer.send(late, world.queue(topic, 0));
        out.await("five replies", () -> replies.size() == 5);
        Transcript.sorted(replies).forEach(each -> out.line("replied %s", each));
        consumer.shutdown();
        answerer.shutdown();
    }

    /** Somebody else answers what comes in "java-asks-python". */
    private static void ask(World world, Transcript out) throws Exception {
        DefaultMQProducer asker = world.started(new DefaultMQProducer("java-asks"), "python-asker");
        for (String body : new String[] {"short", "large"}) {
            Message question = new Message("java-asks-python", "TagQ", "key", World.bytes(body));
            question.putUserProperty("from", "Java");
            Message reply = asker.request(question, 30_000);
            out.line("reply topic=%s body=%s flag=%d %s", reply.getTopic(), Transcript.body(reply.getBody()), reply.getFlag(), out.properties(reply.getProperties()));
        }
        asker.shutdown();
    }

    /** Somebody else asks in "python-asks-java": three questions, of which the one called "large" gets a large answer. */
    private static void beAsked(World world, Transcript out) throws Exception {
        DefaultMQProducer answerer = world.started(new DefaultMQProducer("java-answers"), "python-answerer");
        List<String> replies = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = world.consumer("java-replies");
        consumer.setInstanceName("python-replier");
        consumer.subscribe("python-asks-java", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                String body = Transcript.body(each.getBody());
                try {
                    Message reply = MessageUtil.createReplyMessage(each, World.bytes(body.equals("large") ? "large ".repeat(2_000) : "Java says " + body));
                    reply.putUserProperty("from", "Java");
                    SendResult sent = answerer.send(reply, 15_000);
                    replies.add(String.format("%s: %s TTL=%s", body, sent.getSendStatus(), each.getProperty("TTL")));
                } catch (Exception error) {
                    replies.add(body + ": " + out.error(error));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        out.await("three questions", () -> replies.size() == 3);
        Transcript.sorted(replies).forEach(each -> out.line("replied %s", each));
        consumer.shutdown();
        answerer.shutdown();
    }

    /** Answers a question; silence with nothing; a plain message as if a client had asked that is not there. */
    private static void answer(Transcript out, DefaultMQProducer answerer, MessageExt question, List<String> replies) {
        String body = Transcript.body(question.getBody());
        try {
            if (body.equals("silence")) {
                replies.add(body + ": none");
                return;
            }
            if (body.equals("to one that is gone")) {
                question.getProperties().put("CORRELATION_ID", "none");
                question.getProperties().put("REPLY_TO_CLIENT", "missing");
                question.getProperties().put("TTL", "1000");
            }
            Message reply = MessageUtil.createReplyMessage(question, World.bytes("answer to " + body));
            SendResult sent = answerer.send(reply, 15_000);
            replies.add(String.format("%s: %s", body, Transcript.result(sent).replaceAll(" offset=[0-9]+", "")));
        } catch (Exception error) {
            replies.add(body + ": " + out.error(error));
        }
    }
}
