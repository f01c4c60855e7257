import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** DefaultMQAdminExt: topics, offsets, single messages. */
final class AdminCases {
    private AdminCases() {
    }

    static void add(Map<String, Main.Case> cases) {
        cases.put("admin-topic", AdminCases::topic);
        cases.put("admin-cluster", AdminCases::cluster);
        cases.put("admin-offsets", AdminCases::offsets);
        cases.put("admin-messages", AdminCases::messages);
        cases.put("admin-key-values", AdminCases::keyValues);
    }

    private static void topic(World world, Transcript out) throws Exception {
        DefaultMQAdminExt admin = world.admin;
        String topic = "java-admin";
        out.fails("route before", () -> admin.examineTopicRouteInfo(topic));
        out.fails("configuration before", () -> admin.examineTopicConfig(world.brokerAddress, topic));
        out.fails("statistics before", () -> admin.examineTopicStats(world.brokerAddress, topic));
        TopicConfig config = new TopicConfig(topic, 3, 2, 6);
        config.setOrder(true);
        config.setAttributes(new HashMap<>(Map.of("+message.type", "FIFO")));
        world.createTopic(out, config);
        TopicConfig found = admin.examineTopicConfig(world.brokerAddress, topic);
        out.line("configuration read=%d write=%d perm=%d order=%s filter=%s flag=%d attributes=%s", found.getReadQueueNums(), found.getWriteQueueNums(),
            found.getPerm(), found.isOrder(), found.getTopicFilterType(), found.getTopicSysFlag(), found.getAttributes());
        TopicRouteData route = admin.examineTopicRouteInfo(topic);
        out.line("route order=%s queues=%s brokers=%s", route.getOrderTopicConf(), route.getQueueDatas(), out.normal(route.getBrokerDatas().toString()));
        world.producer.send(World.message(topic, "one"), world.queue(topic, 1));
        world.producer.send(World.message(topic, "two"), world.queue(topic, 1));
        List<String> statistics = new ArrayList<>();
        out.await("the statistics", () -> {
            statistics.clear();
            admin.examineTopicStats(topic).getOffsetTable().forEach((queue, offsets) -> statistics.add(String.format("%s/%s/%d %d to %d updated %s",
                queue.getTopic(), queue.getBrokerName(), queue.getQueueId(), offsets.getMinOffset(), offsets.getMaxOffset(), offsets.getLastUpdateTimestamp() > 0)));
            return statistics.stream().anyMatch(each -> each.contains("to 2 updated true"));
        });
        out.line("statistics %s", Transcript.sorted(statistics));
        out.line("listed %s", admin.fetchAllTopicList().getTopicList().contains(topic));
        out.line("listed in the cluster %s", admin.fetchTopicsByCLuster("DefaultCluster").getTopicList().contains(topic));
        out.line("among all configurations %s", admin.getAllTopicConfig(world.brokerAddress, 15_000).getTopicConfigTable().containsKey(topic));
        out.line("clusters of the topic %s", admin.getTopicClusterList(topic));

        found.setWriteQueueNums(3);
        found.setAttributes(new HashMap<>());
        world.createTopic(out, found);
        out.line("changed %s", out.normal(admin.examineTopicConfig(world.brokerAddress, topic).toString()));
        out.fails("a system topic", () -> {
            admin.createAndUpdateTopicConfig(world.brokerAddress, new TopicConfig("SELF_TEST_TOPIC", 1, 1, 6));
            return "nothing";
        });
        out.fails("a bad name", () -> {
            admin.createAndUpdateTopicConfig(world.brokerAddress, new TopicConfig("not a name", 1, 1, 6));
            return "nothing";
        });

        admin.deleteTopicInBroker(Set.of(world.brokerAddress), topic);
        admin.deleteTopicInNameServer(Set.of(world.nameServer), "DefaultCluster", topic);
        out.await("the topic to go", () -> {
            try {
                admin.examineTopicRouteInfo(topic);
                return false;
            } catch (org.apache.rocketmq.client.exception.MQClientException gone) {
                return gone.getResponseCode() == 17;
            }
        });
        out.fails("route after", () -> admin.examineTopicRouteInfo(topic));
        out.fails("configuration after", () -> admin.examineTopicConfig(world.brokerAddress, topic));
        world.createTopic(out, topic, 2);
        SendResult again = world.producer.send(World.message(topic, "again"), world.queue(topic, 1));
        out.line("created again %s offset=%d", again.getSendStatus(), again.getQueueOffset());
    }

    private static void cluster(World world, Transcript out) throws Exception {
        ClusterInfo info = world.admin.examineBrokerClusterInfo();
        info.getClusterAddrTable().forEach((cluster, brokers) -> out.line("cluster %s %s", cluster, Transcript.sorted(brokers)));
        info.getBrokerAddrTable().forEach((name, data) -> out.line("broker %s of %s addresses=%s", name, data.getCluster(), out.normal(data.getBrokerAddrs().toString())));
        out.line("name servers %d", world.admin.getNameServerAddressList().size());
        out.line("clusters of the broker %s", world.admin.getClusterList("TBW102"));
        Map<String, String> runtime = world.admin.fetchBrokerRuntimeStats(world.brokerAddress).getTable();
        out.line("runtime version=%s, has putTps %s", runtime.get("brokerVersionDesc"), runtime.containsKey("putTps"));
    }

    private static void offsets(World world, Transcript out) throws Exception {
        DefaultMQAdminExt admin = world.admin;
        String topic = "java-admin-offsets";
        world.createTopic(out, topic, 2);
        long begun = System.currentTimeMillis();
        out.line("empty min=%d max=%d", admin.minOffset(world.queue(topic, 1)), admin.maxOffset(world.queue(topic, 1)));
        out.line("empty earliest %d", admin.earliestMsgStoreTime(world.queue(topic, 1)));
        world.fill(topic, 1, 0, 3);
        List<MessageExt> stored = world.read(out, topic, 0, 3);
        Thread.sleep(20);
        world.fill(topic, 1, 3, 5);
        stored = world.read(out, topic, 0, 5);
        out.await("the maximum", () -> admin.maxOffset(world.queue(topic, 0)) == 5);
        out.line("min=%d max=%d", admin.minOffset(world.queue(topic, 0)), admin.maxOffset(world.queue(topic, 0)));
        out.line("earliest %s", admin.earliestMsgStoreTime(world.queue(topic, 0)) == stored.get(0).getStoreTimestamp() ? "first message" : "another");
        long later = stored.get(3).getStoreTimestamp();
        out.line("search long ago %d, between %d, at %d, tomorrow %d", admin.searchOffset(world.queue(topic, 0), begun - 86_400_000),
            admin.searchOffset(world.queue(topic, 0), later - 5), admin.searchOffset(world.queue(topic, 0), later), admin.searchOffset(world.queue(topic, 0), begun + 86_400_000));
        out.line("boundaries: lower between %d, upper between %d, upper tomorrow %d", admin.searchLowerBoundaryOffset(world.queue(topic, 0), later - 5),
            admin.searchUpperBoundaryOffset(world.queue(topic, 0), later - 5), admin.searchUpperBoundaryOffset(world.queue(topic, 0), begun + 86_400_000));
        out.fails("queue 9", () -> admin.maxOffset(world.queue(topic, 9)));
        out.fails("unknown topic", () -> admin.minOffset(world.queue("java-no-such-topic", 0)));
    }

    private static void messages(World world, Transcript out) throws Exception {
        DefaultMQAdminExt admin = world.admin;
        String topic = "java-admin-messages";
        world.createTopic(out, topic, 2);
        SendResult first = world.producer.send(new Message(topic, "TagA", "apple pear", World.bytes("first")), world.queue(topic, 0));
        SendResult second = world.producer.send(new Message(topic, "TagB", "pear", World.bytes("second")), world.queue(topic, 1));
        SendResult plain = world.producer.send(World.message(topic, "no key"), world.queue(topic, 1));
        out.line("by offset id %s", out.stored(admin.viewMessage(topic, first.getOffsetMsgId())));
        out.line("by unique id %s", out.stored(awaited(out, world, topic, plain.getMsgId())));
        for (String key : new String[] {"apple", "pear"}) {
            out.await("the messages of " + key, () -> query(world, topic, key, 10).size() >= (key.equals("pear") ? 2 : 1));
            out.line("by key %s %s", key, query(world, topic, key, 10));
        }
        out.line("by key pear, one only: %d", query(world, topic, "pear", 1).size());
        QueryResult unique = admin.queryMessageByUniqKey("DefaultCluster", topic, second.getMsgId(), 10, 0, Long.MAX_VALUE);
        out.line("query by unique id %d %s", unique.getMessageList().size(), unique.getMessageList().get(0).getMsgId().equals(second.getMsgId()));
        out.fails("by an unknown key", () -> query(world, topic, "plum", 10));
        out.fails("by key, yesterday", () -> admin.queryMessage(topic, "pear", 10, 0, System.currentTimeMillis() - 86_400_000).getMessageList());
        out.fails("by an unknown unique id", () -> admin.queryMessage("DefaultCluster", topic, "7F000001000000000000000000000000"));
        out.fails("by an unknown offset id", () -> admin.viewMessage(topic, first.getOffsetMsgId().substring(0, 16) + "00000000FFFFFFF0"));
    }

    private static MessageExt awaited(Transcript out, World world, String topic, String id) throws Exception {
        MessageExt[] found = new MessageExt[1];
        out.await("the index of " + topic, () -> (found[0] = world.admin.queryMessage("DefaultCluster", topic, id)) != null);
        return found[0];
    }

    private static List<String> query(World world, String topic, String key, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        world.admin.queryMessage(topic, key, count, 0, Long.MAX_VALUE).getMessageList().forEach(each -> bodies.add(Transcript.body(each.getBody())));
        return Transcript.sorted(bodies);
    }

    private static void keyValues(World world, Transcript out) throws Exception {
        DefaultMQAdminExt admin = world.admin;
        admin.createAndUpdateKvConfig("java-space", "colour", "red");
        out.line("value %s", admin.getKVConfig("java-space", "colour"));
        out.line("all %s", admin.getKVListByNamespace("java-space").getTable());
        admin.deleteKvConfig("java-space", "colour");
        out.fails("value after", () -> admin.getKVConfig("java-space", "colour"));
        out.fails("unknown space", () -> admin.getKVListByNamespace("java-no-space").getTable());
    }
}
