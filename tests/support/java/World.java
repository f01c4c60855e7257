import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What all cases share: the servers, an admin, one producer and one reader. Cases run at once, each with topics of its own. */
final class World {
    /**
     * A client that starts gives up a heartbeat while another of its own is under way, so the broker may not know its group or its latest
     * subscription until the next one, stock 30 s later.
     */
    static final int HEARTBEAT_MS = 1_000;

    final String nameServer;
    final String broker;
    final String brokerAddress;
    final DefaultMQAdminExt admin;
    final DefaultMQProducer producer;
    private final DefaultMQPullConsumer reader;

    World(String nameServer, String broker) throws Exception {
        this.nameServer = nameServer;
        this.broker = broker;
        admin = new DefaultMQAdminExt(15_000);
        admin.setNamesrvAddr(nameServer);
        admin.start();
        brokerAddress = admin.examineTopicRouteInfo("TBW102").getBrokerDatas().stream()
            .filter(data -> data.getBrokerName().equals(broker)).findFirst().orElseThrow().selectBrokerAddr();
        producer = startedProducer("java-producer");
        reader = new DefaultMQPullConsumer("java-reader");
        reader.setNamesrvAddr(nameServer);
        reader.setInstanceName("reader");
        reader.start();
    }

    /** Producers share one client instance. */
    DefaultMQProducer startedProducer(String group) throws Exception {
        return started(new DefaultMQProducer(group), "producers");
    }

    <P extends DefaultMQProducer> P started(P made, String instance) throws Exception {
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(instance);
        made.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        made.setSendMsgTimeout(15_000);
        made.start();
        return made;
    }

    /** Not started yet. Each consumer is a client of its own; its end waits for listeners under way, whose offsets count. */
    DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        return consumer;
    }

    /** Returns when the name server knows the topic. */
    void createTopic(Transcript out, String topic, int queues) throws Exception {
        createTopic(out, new TopicConfig(topic, queues, queues, 6));
    }

    void createTopic(Transcript out, TopicConfig config) throws Exception {
        admin.createAndUpdateTopicConfig(brokerAddress, config);
        out.await("the route of " + config.getTopicName(), () -> admin.examineTopicRouteInfo(config.getTopicName()) != null);
    }

    MessageQueue queue(String topic, int id) {
        return new MessageQueue(topic, broker, id);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static Message message(String topic, String body) {
        return new Message(topic, bytes(body));
    }

    /** "body-0" and on, message i in queue i modulo ``queues``. */
    void fill(String topic, int queues, int first, int end) throws Exception {
        for (int i = first; i < end; i++) {
            producer.send(message(topic, "body-" + i), queue(topic, i % queues));
        }
    }

    long maxOffset(String topic, int queue) throws Exception {
        return admin.searchOffset(brokerAddress, topic, queue, System.currentTimeMillis() + 86_400_000, 15_000);
    }

    /** Everything in the queue, once it holds ``count`` messages. */
    List<MessageExt> read(Transcript out, String topic, int queue, int count) throws Exception {
        List<MessageExt> found = Collections.synchronizedList(new ArrayList<>());
        out.await(count + " messages in queue " + queue + " of " + topic, () -> {
            PullResult pulled = reader.pull(queue(topic, queue), "*", found.size(), 32);
            if (pulled.getPullStatus() == PullStatus.FOUND) {
                found.addAll(pulled.getMsgFoundList());
            }
            return found.size() >= count;
        });
        return found;
    }

    void writeStored(Transcript out, String topic, int queue, int count) throws Exception {
        for (MessageExt each : read(out, topic, queue, count)) {
            out.line("stored %s", out.stored(each));
        }
    }

    /** Where the group stands: consumer offset and broker offset of each queue. */
    String progress(String group, String topic) throws Exception {
        List<String> places = new ArrayList<>();
        admin.examineConsumeStats(group, topic).getOffsetTable().forEach((queue, offsets) -> places.add(
            String.format("%s/%d %d of %d", queue.getTopic(), queue.getQueueId(), offsets.getConsumerOffset(), offsets.getBrokerOffset())));
        return Transcript.sorted(places).toString();
    }

    void awaitProgress(Transcript out, String group, String topic, Map<Integer, Long> expected) throws Exception {
        out.await("offsets of " + group, () -> {
            Map<MessageQueue, org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper> table =
                admin.examineConsumeStats(group, topic).getOffsetTable();
            return expected.entrySet().stream().allMatch(
                each -> table.containsKey(queue(topic, each.getKey())) && table.get(queue(topic, each.getKey())).getConsumerOffset() == each.getValue());
        });
    }
}
