import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Push consumers of one group, each a client of its own, that come and go as lines of the input say.
 *
 * <pre>java GroupMembers NAMESERVER GROUP TOPIC WORK_MS AWAIT_MS orderly|concurrently FIRST|LAST</pre>
 *
 * Lines: "join NAME FILE", "leave NAME", "shares MEMBERS". Each is answered by one line that begins with it. A listener takes 0 to
 * WORK_MS, and writes to its member's FILE what tests/cluster/group_member.py writes. AWAIT_MS: awaitTerminationMillisWhenShutdown,
 * stock 0. FIRST, LAST: where the group begins without offsets.
 */
final class GroupMembers {
    private static final int THREADS = 64;

    private final String nameServer;
    private final String group;
    private final String topic;
    private final int work;
    private final long await;
    private final boolean orderly;
    private final ConsumeFromWhere start;
    private final PrintStream output;
    private final Map<String, DefaultMQPushConsumer> members = new ConcurrentHashMap<>();
    private DefaultMQAdminExt admin;

    private GroupMembers(String[] arguments, PrintStream output) {
        nameServer = arguments[0];
        group = arguments[1];
        topic = arguments[2];
        work = Integer.parseInt(arguments[3]);
        await = Long.parseLong(arguments[4]);
        orderly = arguments[5].equals("orderly");
        start = ConsumeFromWhere.valueOf("CONSUME_FROM_" + arguments[6] + "_OFFSET");
        this.output = output;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        GroupMembers members = new GroupMembers(arguments, output);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String asked = line;
            Thread thread = new Thread(() -> members.answer(asked));
            thread.setDaemon(true);
            thread.start();
        }
        System.err.flush();
        Runtime.getRuntime().halt(0);
    }

    private void answer(String line) {
        String[] words = line.split(" ");
        String result;
        try {
            if (words[0].equals("join")) {
                join(words[1], words[2]);
                result = "ok";
            } else if (words[0].equals("leave")) {
                members.remove(words[1]).shutdown();
                result = "ok";
            } else {
                result = differences(Integer.parseInt(words[1]));
            }
        } catch (Exception error) {
            error.printStackTrace();
            result = String.valueOf(error);
        }
        output.println(words[0] + " " + words[1] + " " + result.replace('\n', ' '));
    }

    private void join(String name, String file) throws Exception {
        FileOutputStream calls = new FileOutputStream(file, true);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name + "-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(start);
        consumer.setAwaitTerminationMillisWhenShutdown(await);
        consumer.setConsumeThreadMax(THREADS);
        consumer.setConsumeThreadMin(THREADS);
        consumer.subscribe(topic, "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                handle(calls, messages.get(0)) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                handle(calls, messages.get(0)) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        members.put(name, consumer);
        while (consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().isEmpty()) {
            Thread.sleep(10);
        }
    }

    private boolean handle(FileOutputStream calls, MessageExt message) {
        try {
            note(calls, "begun", message);
            Thread.sleep(ThreadLocalRandom.current().nextInt(work + 1));
            note(calls, "ended", message);
            return true;
        } catch (InterruptedException | IOException error) {
            return false;
        }
    }

    private static void note(FileOutputStream calls, String what, MessageExt message) throws IOException {
        String number = new String(message.getBody(), StandardCharsets.UTF_8);
        String line = String.format(Locale.ROOT, "%s %s %s:%d:%d %d %.4f%n", what, number, message.getBrokerName(), message.getQueueId(),
            message.getQueueOffset(), message.getReconsumeTimes(), System.currentTimeMillis() / 1000.0);
        calls.write(line.getBytes(StandardCharsets.UTF_8));
    }

    /** How the members' queues differ from what Java's AVG gives each of ``count`` members; "equal" where they do not. */
    private String differences(int count) throws Exception {
        DefaultMQAdminExt asking = admin();
        List<String> clients = new ArrayList<>();
        for (Connection each : asking.examineConsumerConnectionInfo(group).getConnectionSet()) {
            clients.add(each.getClientId());
        }
        Collections.sort(clients);
        if (clients.size() != count) {
            return clients.size() + " members are connected, not " + count;
        }
        List<MessageQueue> queues = new ArrayList<>(MQClientInstance.topicRouteData2TopicSubscribeInfo(topic, asking.examineTopicRouteInfo(topic)));
        Collections.sort(queues);
        for (String client : clients) {
            Collection<MessageQueue> due = new AllocateMessageQueueAveragely().allocate(group, client, queues, clients);
            ConsumerRunningInfo info = asking.getConsumerRunningInfo(group, client, false);
            TreeMap<MessageQueue, Boolean> held = new TreeMap<>();
            info.getMqTable().forEach((queue, process) -> {
                if (queue.getTopic().equals(topic)) {
                    held.put(queue, process.isDroped());
                }
            });
            if (held.containsValue(true) || !held.keySet().equals(new TreeSet<>(due))) {
                return client + " holds " + held.size() + " queues, not the " + due.size() + " of its share";
            }
        }
        return "equal";
    }

    private synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt made = new DefaultMQAdminExt(5_000);
            made.setNamesrvAddr(nameServer);
            made.setInstanceName("admin-" + ProcessHandle.current().pid());
            made.start();
            admin = made;
        }
        return admin;
    }
}
