import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Prints the shares that the client's strategies compute, one JSON object a line. */
public class Allocations {
    private static final String[][] LAYOUTS = {
        {"broker-a"}, {"broker-a", "broker-b"}, {"hz@a", "sh@b", "bj@c"}, {"hz@a", "plain", "sh@b@c"},
    };
    private static final int[] SIZES = {1, 4, 11};
    private static final String[][] MEMBERS = {
        {"hz-1"}, {"hz-1", "hz-2", "sh-1"}, {"10.0.0.10@5", "10.0.0.1@DEFAULT", "10.0.0.1@a", "fe80::1@3"},
        {"hz-1", "hz-1", "sh-1"}, {"c1", "c2", "c3", "c4", "c5", "c6", "c7"},
    };

    public static void main(String[] arguments) {
        for (String[] brokers : LAYOUTS) {
            for (int size : SIZES) {
                for (String[] members : MEMBERS) {
                    print("AVG", new AllocateMessageQueueAveragely(), brokers, size, members);
                    print("AVG_BY_CIRCLE", new AllocateMessageQueueAveragelyByCircle(), brokers, size, members);
                    print("CONSISTENT_HASH", new AllocateMessageQueueConsistentHash(), brokers, size, members);
                    AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                    rooms.setConsumeridcs(new LinkedHashSet<>(Arrays.asList("hz", "sh")));
                    print("MACHINE_ROOM", rooms, brokers, size, members);
                    print("NEARBY-AVG", nearby(new AllocateMessageQueueAveragely()), brokers, size, members);
                    print("NEARBY-HASH", nearby(new AllocateMessageQueueConsistentHash()), brokers, size, members);
                }
            }
        }
    }

    /** The room of a broker or a member is what its name begins with: two characters. */
    private static AllocateMessageQueueStrategy nearby(AllocateMessageQueueStrategy inner) {
        return new AllocateMachineRoomNearby(inner, new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().substring(0, 2);
            }

            @Override
            public String consumerDeployIn(String clientId) {
                return clientId.substring(0, 2);
            }
        });
    }

    private static void print(
        String name, AllocateMessageQueueStrategy strategy, String[] brokers, int size, String[] members) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String broker : brokers) {
            for (int number = 0; number < size; number++) {
                queues.add(new MessageQueue("T", broker, number));
            }
        }
        Collections.sort(queues);
        List<String> sorted = new ArrayList<>(Arrays.asList(members));
        Collections.sort(sorted);
        List<String> shares = new ArrayList<>();
        for (String member : new LinkedHashSet<>(sorted)) {
            shares.add("\"" + member + "\": " + share(strategy, member, queues, sorted));
        }
        System.out.println("{\"strategy\": \"" + name + "\", \"brokers\": " + texts(Arrays.asList(brokers)) + ", \"size\": " + size
            + ", \"members\": " + texts(sorted) + ", \"shares\": {" + String.join(", ", shares) + "}}");
    }

    /** The places of a share's queues among all of them, in its order. */
    private static List<Integer> share(
        AllocateMessageQueueStrategy strategy, String member, List<MessageQueue> queues, List<String> members) {
        List<Integer> places = new ArrayList<>();
        for (MessageQueue queue : strategy.allocate("G", member, queues, members)) {
            places.add(queues.indexOf(queue));
        }
        return places;
    }

    private static String texts(List<String> texts) {
        return "[\"" + String.join("\", \"", texts) + "\"]";
    }
}
