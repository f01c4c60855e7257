import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.body.ProducerConnection;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** DefaultMQAdminExt: groups, who is connected, and what it asks of a running consumer. */
final class GroupCases {
    private GroupCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("admin-groups", GroupCases::groups);
        cases.put("admin-connections", GroupCases::connections);
        cases.put("admin-reset", GroupCases::reset);
    }

    private static void groups(World world, Transcript out) throws Exception {
        DefaultMQAdminExt admin = world.admin;
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName("java-made-group");
        config.setRetryMaxTimes(5);
        config.setRetryQueueNums(2);
        admin.createAndUpdateSubscriptionGroupConfig(world.brokerAddress, config);
        SubscriptionGroupConfig found = admin.examineSubscriptionGroupConfig(world.brokerAddress, "java-made-group");
        out.line("group %s retries=%d retryQueues=%d enabled=%s broadcast=%s orderly=%s", found.getGroupName(), found.getRetryMaxTimes(),
            found.getRetryQueueNums(), found.isConsumeEnable(), found.isConsumeBroadcastEnable(), found.isConsumeMessageOrderly());
        out.line("among all %s", admin.getAllSubscriptionGroup(world.brokerAddress, 15_000).getSubscriptionGroupTable().containsKey("java-made-group"));
        admin.deleteSubscriptionGroup(world.brokerAddress, "java-made-group", true);
        out.line("after %s", admin.getAllSubscriptionGroup(world.brokerAddress, 15_000).getSubscriptionGroupTable().containsKey("java-made-group"));
    }

    private static void connections(World world, Transcript out) throws Exception {
        DefaultMQAdminExt admin = world.admin;
        String topic = "java-connected";
        String group = "java-connected-group";
        world.createTopic(out, topic, 2);
        out.fails("consumers before", () -> admin.examineConsumerConnectionInfo(group).getConnectionSet());
        out.fails("producers before", () -> admin.examineProducerConnectionInfo("java-connected-producer", topic).getConnectionSet());
        DefaultMQProducer producer = world.startedProducer("java-connected-producer");
        SendResult sent = producer.send(new Message(topic, "TagA", World.bytes("one")), world.queue(topic, 0));
        ConcurrentLinkedQueue<MessageExt> got = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = PushCases.collect(world, group, topic, "TagA || TagB", got);
        out.await("one message", () -> got.size() == 1);
        producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        ProducerConnection producers = admin.examineProducerConnectionInfo("java-connected-producer", topic);
        producers.getConnectionSet().forEach(each -> out.line("producer %s %s version=%d", each.getClientId().replaceAll(".*@", ""), each.getLanguage(), each.getVersion()));
        ConsumerConnection consumers = admin.examineConsumerConnectionInfo(group);
        consumers.getConnectionSet().forEach(each -> out.line("consumer %s %s version=%d", out.normal(each.getClientId()), each.getLanguage(), each.getVersion()));
        out.line("consumes %s %s %s", consumers.getConsumeType(), consumers.getMessageModel(), consumers.getConsumeFromWhere());
        new TreeMap<>(consumers.getSubscriptionTable()).forEach((name, each) -> out.line("subscribed %s to %s tags=%s codes=%s type=%s", name, each.getSubString(),
            each.getTagsSet(), each.getCodeSet(), each.getExpressionType()));
        out.line("groups of the topic %s", Transcript.sorted(admin.queryTopicConsumeByWho(topic).getGroupList()));

        String client = consumers.getConnectionSet().iterator().next().getClientId();
        ConsumerRunningInfo info = admin.getConsumerRunningInfo(group, client, false);
        List<String> queues = new ArrayList<>();
        info.getMqTable().keySet().stream().filter(queue -> queue.getTopic().equals(topic)).forEach(queue -> queues.add(queue.getTopic() + "/" + queue.getQueueId()));
        out.line("running %s queues=%s", info.getProperties().get("PROP_CONSUME_TYPE"), queues);
        ConsumeMessageDirectlyResult direct = admin.consumeMessageDirectly(group, client, topic, sent.getOffsetMsgId());
        out.line("consumed directly %s order=%s, deliveries %d", direct.getConsumeResult(), direct.isOrder(), got.size());
        consumer.shutdown();
        producer.shutdown();
        world.awaitProgress(out, group, topic, Map.of(0, 1L));
        out.line("topics of the group %s", Transcript.sorted(admin.queryTopicsByConsumer(group).getTopicList()));
        out.await("the consumer to go", () -> {
            try {
                admin.examineConsumerConnectionInfo(group);
                return false;
            } catch (org.apache.rocketmq.client.exception.MQBrokerException gone) {
                return true;
            }
        });
        out.fails("consumers after", () -> admin.examineConsumerConnectionInfo(group).getConnectionSet());
        out.fails("running information after", () -> admin.getConsumerRunningInfo(group, client, false));
    }

    private static void reset(World world, Transcript out) throws Exception {
        DefaultMQAdminExt admin = world.admin;
        String topic = "java-reset";
        String group = "java-reset-group";
        world.createTopic(out, topic, 1);
        world.fill(topic, 1, 0, 4);
        ConcurrentLinkedQueue<MessageExt> got = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = PushCases.collect(world, group, topic, "*", got);
        out.await("4 messages", () -> got.size() == 4);
        consumer.shutdown();
        world.awaitProgress(out, group, topic, Map.of(0, 4L));
        admin.updateConsumeOffset(world.brokerAddress, group, world.queue(topic, 0), 1);
        out.line("set to 1: %s", world.progress(group, topic));
        out.fails("offsets of an unknown group", () -> admin.examineConsumeStats("java-no-group").getOffsetTable());
    }
}
